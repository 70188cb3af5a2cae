"""MessageQueue: the name of one queue of a topic on one broker."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.wire.topics import unwrap_namespace


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker. The order is the one that RocketMQ uses for allocation."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"

    def without(self, namespace: str) -> MessageQueue:
        """Return the queue with its topic as handlers know it."""
        if not namespace:
            return self
        return MessageQueue(unwrap_namespace(self.topic, namespace), self.broker_name, self.queue_id)
