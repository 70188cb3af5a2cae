"""The age of the messages that a group has not handled yet, queue by queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rmqd.wire.bodies.base import Body
from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueTimeSpan(Body, called="a queue's time span"):
    """Times of one queue in milliseconds since 1970, `delay_time` in milliseconds.

    `delay_time` is the age of the message at the group's offset, by the broker's clock. It is 0 if no message waits,
    and has no meaning if the group has no offset or the message is deleted.
    """

    message_queue: MessageQueue
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object. Next to each time is its text in the format of Java's tools."""
        times = Body.to_dict(self)
        printed = {f"{name}Str": _local(value) for name, value in times.items() if name.endswith("TimeStamp")}
        return dict(sorted((times | printed).items()))


@dataclass(frozen=True, slots=True)
class QueryConsumeTimeSpanBody(Body):
    """The response to QUERY_CONSUME_TIME_SPAN (303): the time spans of a topic's queues on one broker."""

    consume_time_span_set: tuple[QueueTimeSpan, ...]


def _local(milliseconds: int) -> str:
    at = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)).astimezone()
    return f"{at:%Y-%m-%d#%H:%M:%S}:{at.microsecond // 1000:03}"
