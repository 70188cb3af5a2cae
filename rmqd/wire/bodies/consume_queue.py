"""Entries of a queue's index as administrators see them (the reply to 321)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.heartbeat import SubscriptionData


@dataclass(frozen=True, slots=True)
class ConsumeQueueData:
    """One entry: where its message is in the commit log, and the hash of its tag."""

    physic_offset: int
    physic_size: int
    tags_code: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON object. `eval` tells what an extended index would filter out, which is not there."""
        return {
            "eval": False,
            "physicOffset": self.physic_offset,
            "physicSize": self.physic_size,
            "tagsCode": self.tags_code,
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "an entry of a queue")
        names = ("physicOffset", "physicSize", "tagsCode")
        return cls(*(fields.integer(data, name) for name in names))


@dataclass(frozen=True, slots=True)
class QueryConsumeQueueResponseBody:
    """Entries, the ends of the queue, and the subscription of the group that was named."""

    min_queue_index: int
    max_queue_index: int
    queue_data: tuple[ConsumeQueueData, ...]
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None

    def to_json(self) -> bytes:
        """The body of the reply to 321."""
        value: dict[str, Any] = {}
        if self.filter_data is not None:
            value["filterData"] = self.filter_data
        value["maxQueueIndex"] = self.max_queue_index
        value["minQueueIndex"] = self.min_queue_index
        value["queueData"] = [entry.to_dict() for entry in self.queue_data]
        if self.subscription_data is not None:
            value["subscriptionData"] = self.subscription_data.to_dict()
        return loose_json.dumps(value)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 321. Raises ProtocolError."""
        data = fields.body_object(body)
        subscription = data.get("subscriptionData")
        return cls(
            fields.integer(data, "minQueueIndex"),
            fields.integer(data, "maxQueueIndex"),
            tuple(ConsumeQueueData.from_dict(item) for item in fields.items(data, "queueData")),
            None if subscription is None else SubscriptionData.from_dict(subscription),
            fields.optional_text(data, "filterData"),
        )
