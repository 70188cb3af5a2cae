"""How old what a group has not handled yet is, queue by queue (the reply to 303)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.queue_map import queue_from_dict, queue_to_dict
from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueTimeSpan:
    """Times of one queue in milliseconds since 1970, `delay_time` in milliseconds.

    `delay_time` is the age of the message at the group's offset by the broker's clock. It is 0 where none waits, and
    means nothing where the group has no offset or the message is gone.
    """

    message_queue: MessageQueue
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; beside the times stands how Java's tools print them."""
        return {
            "consumeTimeStamp": self.consume_time_stamp,
            "consumeTimeStampStr": _local(self.consume_time_stamp),
            "delayTime": self.delay_time,
            "maxTimeStamp": self.max_time_stamp,
            "maxTimeStampStr": _local(self.max_time_stamp),
            "messageQueue": queue_to_dict(self.message_queue),
            "minTimeStamp": self.min_time_stamp,
            "minTimeStampStr": _local(self.min_time_stamp),
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a queue's time span")
        return cls(
            queue_from_dict(data.get("messageQueue")),
            fields.integer(data, "minTimeStamp", 0),
            fields.integer(data, "maxTimeStamp", 0),
            fields.integer(data, "consumeTimeStamp", 0),
            fields.integer(data, "delayTime", 0),
        )


@dataclass(frozen=True, slots=True)
class QueryConsumeTimeSpanBody:
    """The time spans of a topic's queues on one broker."""

    consume_time_span_set: tuple[QueueTimeSpan, ...]

    def to_json(self) -> bytes:
        """The body of the reply to 303."""
        return loose_json.dumps({"consumeTimeSpanSet": [span.to_dict() for span in self.consume_time_span_set]})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 303. Raises ProtocolError."""
        items = fields.items(fields.body_object(body), "consumeTimeSpanSet")
        return cls(tuple(QueueTimeSpan.from_dict(item) for item in items))


def _local(milliseconds: int) -> str:
    at = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)).astimezone()
    return f"{at:%Y-%m-%d#%H:%M:%S}:{at.microsecond // 1000:03}"
