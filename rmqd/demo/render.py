"""Figures as text: durations, sparklines, and lines without control characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS: Final = "_.-:=+*#"


def duration(seconds: float) -> str:
    """Return a duration as `7s`, `1m 07s`, `1h 02m`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3600}h {whole // 60 % 60:02}m"


def spark(values: Sequence[float], top: float, width: int, *, ascii_only: bool = False) -> str:
    """Return the newest values as a line of blocks, the highest block for `top` and above; empty without values."""
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    shown = values[max(0, len(values) - width) :] if width > 0 else ()
    return "".join(blocks[min(int(value / top * len(blocks)), len(blocks) - 1)] for value in shown)


def one_line(text: str) -> str:
    """Return the text without line ends and control characters."""
    return "".join(character if character.isprintable() else " " for character in text)
