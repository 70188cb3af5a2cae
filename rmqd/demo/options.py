"""What `rmqd demo` was asked for, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """None: the sample group, and no end but a signal."""

    config: Path | None = None
    group: str | None = None
    seconds: float | None = None
    messages: int | None = None
    seed: int | None = None
    engine: str = "local"


@dataclass(frozen=True, slots=True)
class Ending:
    """The exit code, and what is to be said once the terminal is as before."""

    code: int
    text: str = ""
