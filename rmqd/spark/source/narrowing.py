"""The messages that a bounded read can skip because of SQL conditions: by queue, offset, store time or tag. No I/O.

Spark applies the conditions itself to the result. So reading more than necessary is harmless, and never less is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from rmqd.spark.queue_range import Filter
from rmqd.wire.bodies.heartbeat import EXPRESSION_TAG, SUBSCRIPTION_ALL
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic

# brokers search by time as if messages were stored in order of time, but their clocks may have been set back
CLOCK_SLACK_MS: Final = 5000
BY_QUEUE: Final = ("topic", "source_topic", "broker", "queue_id")


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Conditions that all hold. Lower bounds are inclusive, upper bounds exclusive; None means no bound."""

    among: Mapping[str, frozenset[object]] = field(default_factory=dict)
    """The only possible values, by column."""
    offsets: tuple[int | None, int | None] = None, None
    stored_ms: tuple[int | None, int | None] = None, None

    def one_of(self, column: str, values: Collection[object]) -> Narrowing:
        """Add the condition that the column has one of these values."""
        if column == "queue_offset":
            numbers = [value for value in values if isinstance(value, int)]
            return self.at_least(column, min(numbers)).at_most(column, max(numbers)) if numbers else self
        if column not in (*BY_QUEUE, "tags"):
            return self
        allowed = frozenset(values) & self.among.get(column, frozenset(values))
        return replace(self, among={**self.among, column: allowed})

    def at_least(self, column: str, value: object) -> Narrowing:
        """Add the condition that the column has this value or a higher one."""
        if column == "queue_offset" and isinstance(value, int):
            return replace(self, offsets=(_higher(self.offsets[0], value), self.offsets[1]))
        if column == "store_timestamp" and isinstance(value, datetime) and value.tzinfo:
            return replace(self, stored_ms=(_higher(self.stored_ms[0], _ms(value) - CLOCK_SLACK_MS), self.stored_ms[1]))
        return self

    def at_most(self, column: str, value: object) -> Narrowing:
        """Add the condition that the column has this value or a lower one."""
        if column == "queue_offset" and isinstance(value, int):
            return replace(self, offsets=(self.offsets[0], _lower(self.offsets[1], value + 1)))
        if column == "store_timestamp" and isinstance(value, datetime) and value.tzinfo:
            end = _ms(value) + 1 + CLOCK_SLACK_MS
            return replace(self, stored_ms=(self.stored_ms[0], _lower(self.stored_ms[1], end)))
        return self

    def has(self, queue: MessageQueue) -> bool:
        """Return whether a queue can have matching messages."""
        values = {"source_topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
        if not is_retry_topic(queue.topic):  # its messages belong to other topics
            values["topic"] = queue.topic
        return all(value in self.among[column] for column, value in values.items() if column in self.among)

    def cut(self, low: int, high: int) -> tuple[int, int]:
        """Remove offsets outside the bounds from a range."""
        return max(low, self.offsets[0] or 0), high if self.offsets[1] is None else min(high, self.offsets[1])

    def cut_by_time(self, span: tuple[int, int], found: tuple[int | None, int | None]) -> tuple[int, int]:
        """Remove too old and too young messages from a range; `found` are the broker's offsets for the times."""
        (low, high), (first, end) = span, found
        return max(low, first or 0), high if end is None else min(high, end)

    def filter(self, given: Filter) -> Filter:
        """Return a filter by tags for the broker, if none is given."""
        tags = self.among.get("tags")
        if tags is None or not given.takes_all or not all(map(_is_tag, tags)):
            return given
        return Filter(EXPRESSION_TAG, " || ".join(sorted(map(str, tags)))) if tags else given


def _is_tag(value: object) -> bool:
    return (
        isinstance(value, str) and value not in ("", SUBSCRIPTION_ALL) and "|" not in value and value == value.strip()
    )


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def _higher(known: int | None, other: int) -> int:
    return other if known is None else max(known, other)


def _lower(known: int | None, other: int) -> int:
    return other if known is None else min(known, other)
