"""The page's formats of numbers, durations and times. Unknown values are a dash."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

UNKNOWN: Final = "–"  # noqa: RUF001  a dash as wide as a digit
_COMPACT: Final = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


def whole(value: float | None) -> str:
    """Return a count with separated thousands."""
    return UNKNOWN if value is None else f"{value:,.0f}".replace(",", "\u202f")


def compact(value: float | None) -> str:
    """Return a count in about five characters: 9,999, 12.3k, 4.5M."""
    if value is None or abs(value) < 10_000:
        return whole(value)
    size, unit = next(one for one in _COMPACT if abs(value) >= one[0])
    return f"{value / size:.1f}{unit}" if abs(value) < 100 * size else f"{value / size:.0f}{unit}"


def rate(value: float | None) -> str:
    """Return a number per second."""
    if value is None:
        return UNKNOWN
    return compact(value) if value >= 100 else f"{value:.1f}"


def seconds(value: float | None) -> str:
    """Return a duration in its one or two largest units: 850 µs, 12 ms, 3.4 s, 2 min 5 s, 3 h 20 min, 4 d 2 h."""
    if value is None:
        return UNKNOWN
    if value < 60:
        return _short_seconds(value)
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return _pair(minutes, "min", rest, "s")
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return _pair(hours, "h", minutes, "min")
    return _pair(hours // 24, "d", hours % 24, "h")


def _short_seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    if value < 0.001:
        return f"{value * 1e6:.0f} µs"
    if value < 0.01:
        return f"{value * 1e3:.1f} ms"
    if value < 1:
        return f"{value * 1e3:.0f} ms"
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"


def bound(value: float) -> str:
    """Return a bound of a histogram: 5 ms, 2.5 s, 15 min."""
    if value < 1:
        return f"{value * 1000:g} ms"
    return f"{value:g} s" if value < 60 else f"{value / 60:g} min"


def moment(at: float) -> str:
    """Return a date and time, to the second."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock_time(at: float) -> str:
    """Return the time of day, to the second."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def iso(at: float) -> str:
    """Return a time for the attribute `datetime`."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count and its noun: 1 queue, 12 queues."""
    return f"{whole(count)} {one if count == 1 else many or one + 's'}"
