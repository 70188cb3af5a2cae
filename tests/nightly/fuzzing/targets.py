"""The targets by name, and the modules whose coverage guides the fuzzer. Neither are imported here."""

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
    """Import and create a target."""
    target: Target = getattr(importlib.import_module(f"tests.nightly.fuzzing.{name}"), _CLASSES[name])()
    return target
