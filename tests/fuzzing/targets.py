"""The targets by name, and the code whose coverage guides the fuzzer. Imports none of either."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.fuzzing.target import Target

_CLASSES: Final = {"frames": "Frames", "configurations": "Configurations", "requests": "Requests"}
INSTRUMENTED: Final[Mapping[str, Sequence[str]]] = {
    "frames": ("rmqd.wire", "tests.fuzzing.planted"),
    "configurations": ("rmqd.config", "rmqd.plugins", "rmqd_handlers", "tests.fuzzing.planted"),
    "requests": (
        "rmqd.daemon.http",
        "rmqd.daemon.groups.host",
        "rmqd.daemon.groups.local_groups",
        "rmqd.consumer.pauses",
        "starlette",
        "uvicorn.protocols.http",
        "tests.fuzzing.planted",
    ),
}
TARGETS: Final = tuple(_CLASSES)


def load(name: str) -> Target:
    """Make a target."""
    target: Target = getattr(importlib.import_module(f"tests.fuzzing.{name}"), _CLASSES[name])()
    return target
