"""Durations (`50ms`, `5s`, `15m`, `1h`) and sizes (`256KiB`, `100MiB`) with units.

A number without a unit is refused, because half of RocketMQ's settings are milliseconds, and the others are not.
"""

from __future__ import annotations

import re
from typing import Final

DURATION_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZE_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
DURATION_FORM: Final = "a duration such as 50ms, 5s, 15m or 1h"
SIZE_FORM: Final = "a size such as 256KiB, 100MiB or 1GiB"
DURATION_PATTERN: Final = r"[0-9]+(\.[0-9]+)?(ms|s|m|h|d)"
SIZE_PATTERN: Final = r"[0-9]+(\.[0-9]+)?(B|KiB|MiB|GiB)"

_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", re.ASCII)
# No setting needs more than 100,000 days, and timers of the event loop would overflow.
_MAX_DURATION_MS: Final = 100_000 * DURATION_UNITS["d"]
# the largest number of bytes that a float represents exactly
_MAX_SIZE_BYTES: Final = 1 << 53


def parse_duration_ms(text: object) -> float:
    """Return the milliseconds of a duration such as `5s`. Raises ValueError with the problem, not the expected form."""
    milliseconds = _parse(text, DURATION_UNITS, "a duration")
    if milliseconds > _MAX_DURATION_MS:
        raise ValueError(f"{text!r} is longer than {format_duration(_MAX_DURATION_MS)}")
    return milliseconds


def parse_duration_seconds(text: object) -> float:
    """Return the seconds of a duration such as `500ms`. Raises ValueError with the problem, not the expected form."""
    return parse_duration_ms(text) / 1000


def parse_size_bytes(text: object) -> int:
    """Return the bytes of a size such as `100MiB`. Raises ValueError with the problem, not the expected form."""
    size = _parse(text, SIZE_UNITS, "a size")
    if size > _MAX_SIZE_BYTES:
        raise ValueError(f"{text!r} is more than {format_size(_MAX_SIZE_BYTES)}")
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def format_duration(milliseconds: float) -> str:
    """Return the shortest exact form: 5000 is `5s`, 65535 is `65535ms`."""
    return _format(milliseconds, DURATION_UNITS, zero="0s")


def format_size(size_bytes: int) -> str:
    """Return the shortest exact form: 1048576 is `1MiB`."""
    return _format(size_bytes, SIZE_UNITS, zero="0B")


def _parse(text: object, units: dict[str, int], kind: str) -> float:
    if isinstance(text, int | float) and not isinstance(text, bool):
        raise ValueError(f"{text} has no unit")  # noqa: TRY004 - all problems of a value are ValueErrors
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not {kind}")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"{text!r} has no unit")
    if unit not in units:
        raise ValueError(f"{text!r} has an unknown unit {unit!r}, known units are {', '.join(units)}")
    return float(number) * units[unit]


def _format(amount: float, units: dict[str, int], zero: str) -> str:
    if amount == 0:
        return zero
    for unit, factor in reversed(units.items()):
        if amount % factor == 0:
            return f"{int(amount // factor)}{unit}"
    return f"{amount:g}{next(iter(units))}"
