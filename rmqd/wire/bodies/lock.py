"""Bodies of locking and unlocking queues on a broker (41, 42)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.queue_map import queue_from_dict, queue_to_dict
from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class LockBatchRequestBody:
    """The queues that a member wants to lock, to keep locked, or (42) to give up."""

    consumer_group: str
    client_id: str
    queues: tuple[MessageQueue, ...]
    only_this_broker: bool = False

    def to_json(self) -> bytes:
        """The body of 41 and 42."""
        return loose_json.dumps(
            {
                "clientId": self.client_id,
                "consumerGroup": self.consumer_group,
                "mqSet": [queue_to_dict(queue) for queue in self.queues],
                "onlyThisBroker": self.only_this_broker,
            }
        )

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of 41 or 42. Raises ProtocolError."""
        data = fields.body_object(body)
        return cls(
            consumer_group=fields.text(data, "consumerGroup"),
            client_id=fields.text(data, "clientId"),
            queues=tuple(queue_from_dict(item) for item in fields.items(data, "mqSet")),
            only_this_broker=fields.boolean(data, "onlyThisBroker"),
        )


@dataclass(frozen=True, slots=True)
class LockBatchResponseBody:
    """The queues that are locked for the asker; what is missing here belongs to another member."""

    queues: frozenset[MessageQueue]

    def to_json(self) -> bytes:
        """The body of the reply to 41."""
        return loose_json.dumps({"lockOKMQSet": [queue_to_dict(queue) for queue in sorted(self.queues)]})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 41. Raises ProtocolError."""
        return cls(frozenset(map(queue_from_dict, fields.items(fields.body_object(body), "lockOKMQSet"))))
