"""The targets by name, and the code whose coverage guides the fuzzer. Imports none of either."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.nightly.fuzzing.target import Target

_CLASSES: Final = {"frames": "Frames", "configurations": "Configurations", "requests": "Requests"}
INSTRUMENTED: Final[Mapping[str, Sequence[str]]] = {
    "frames": ("rmqd.wire", "tests.nightly.fuzzing.planted"),
    "configurations": ("rmqd.config", "rmqd.plugins", "rmqd_handlers", "tests.nightly.fuzzing.planted"),
    "requests": (
        "rmqd.daemon.http",
        "rmqd.daemon.groups.group_engine",
        "rmqd.daemon.groups.local_groups",
        "rmqd.consumer.pauses",
        "starlette",
        "uvicorn.protocols.http",
        "tests.nightly.fuzzing.planted",
    ),
}
TARGETS: Final = tuple(_CLASSES)


def load(name: str) -> Target:
    """Make a target."""
    target: Target = getattr(importlib.import_module(f"tests.nightly.fuzzing.{name}"), _CLASSES[name])()
    return target
