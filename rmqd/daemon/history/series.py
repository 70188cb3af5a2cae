"""The points of one group over the last hour, in a ring of fixed size."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Final

STEP_SECONDS: Final = 5.0
POINTS: Final = 720  # an hour
COLUMNS: Final = ("lag", "lag_seconds", "received", "handled", "failed", "retried", "dead_lettered", "p50", "p99")
_WHOLE: Final = frozenset({"lag"})


class GroupSeries:
    """A ring of points: 8 bytes for each of POINTS and COLUMNS, 52 KB in total."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = array("d", [math.nan]) * (POINTS * len(COLUMNS))

    def put(self, number: int, values: Mapping[str, float | None]) -> None:
        """Write the point of this number over the one that is POINTS older. A missing column is unknown."""
        at = number % POINTS * len(COLUMNS)
        for offset, column in enumerate(COLUMNS):
            value = values.get(column)
            self._values[at + offset] = math.nan if value is None else value

    def column(self, name: str, numbers: range) -> list[float | int | None]:
        """Return the values of a column in the points with these numbers; None if unknown."""
        offset, width, is_whole = COLUMNS.index(name), len(COLUMNS), name in _WHOLE
        found = (self._values[number % POINTS * width + offset] for number in numbers)
        return [None if math.isnan(value) else int(value) if is_whole else _short(value) for value in found]


def _short(value: float) -> float | int:
    """Return the value with as many digits as a chart can show."""
    rounded = round(value, 1) if value >= 100 else round(value, 3) if value >= 1 else round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded
