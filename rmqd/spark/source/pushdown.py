"""Bounded reads that skip what SQL conditions rule out (option `pushdown`): queues, offsets, times and tags.

Spark rejects every read through such a reader while spark.sql.python.filterPushdown.enabled is false, the default. So
it is used only on request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from rmqd.spark.source.batch_reader import RocketMQBatchReader
from rmqd.spark.source.narrowing import Narrowing

_EQUAL: Final = (EqualTo, EqualNullSafe)
_LOWER_BOUND: Final = (GreaterThan, GreaterThanOrEqual)
_UPPER_BOUND: Final = (LessThan, LessThanOrEqual)


class PushdownBatchReader(RocketMQBatchReader):
    """Receives the conditions of a read before Spark asks for partitions."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Derive what can be skipped. Return all conditions, so that Spark applies them to the result."""
        self.narrowing = narrowed(filters)
        return filters


def narrowed(filters: Iterable[Filter]) -> Narrowing:
    """Return what can be skipped if all conditions hold. Conditions on a field of a column are ignored."""
    found = Narrowing()
    for condition in filters:
        if isinstance(condition, (*_EQUAL, In, *_LOWER_BOUND, *_UPPER_BOUND)) and len(condition.attribute) == 1:
            (column,), value = condition.attribute, condition.value
            if isinstance(condition, In):
                found = found.one_of(column, condition.value)
            elif isinstance(condition, _EQUAL):
                found = found.one_of(column, [value]).at_least(column, value).at_most(column, value)
            elif isinstance(condition, _LOWER_BOUND):
                found = found.at_least(column, value)
            else:
                found = found.at_most(column, value)
    return found
