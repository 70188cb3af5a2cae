"""The options of `rmqd demo`, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """None: the sample group, and no end except by a signal."""

    config: Path | None = None
    group: str | None = None
    seconds: float | None = None
    messages: int | None = None
    seed: int | None = None
    engine: str = "local"


@dataclass(frozen=True, slots=True)
class Ending:
    """The exit code, and the text to print after the terminal is restored."""

    code: int
    text: str = ""
