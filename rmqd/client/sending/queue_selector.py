"""Selects the queue of an ordered message: messages that must stay in order go to the same queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmqd.errors import RouteNotFoundError
from rmqd.wire.filter import java_hash
from rmqd.wire.message_queue import MessageQueue

MessageQueueSelector = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Selects one of the writable queues, which are in RocketMQ's order; there is at least one."""


def by_hash(sharding_key: str) -> MessageQueueSelector:
    """Select by the key's hash, as Java's `SelectMessageQueueByHash`: the same queue if their number is the same."""
    return lambda queues: queues[abs(java_hash(sharding_key)) % len(queues)]


def by_id(queue_id: int, broker_name: str = "") -> MessageQueueSelector:
    """Select the queue with this id. `broker_name` is needed if several brokers have the topic.

    The selector raises RouteNotFoundError if no queue matches, or more than one.
    """

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        found = [queue for queue in queues if queue.queue_id == queue_id and broker_name in ("", queue.broker_name)]
        if len(found) == 1:
            return found[0]
        topic, what = queues[0].topic, f"{broker_name}:{queue_id}" if broker_name else str(queue_id)
        if found:
            expected = ", ".join(f"{queue.broker_name}:{queue_id}" for queue in found)
            raise RouteNotFoundError(
                topic, f"several brokers have queue {queue_id} of {topic}; expected one of {expected}"
            )
        raise RouteNotFoundError(topic, f"{topic} has no writable queue {what}; expected one of {_known(queues)}")

    return select


def _known(queues: Sequence[MessageQueue]) -> str:
    last = {queue.broker_name: queue.queue_id for queue in queues}
    return ", ".join(f"{broker}:0" if most == 0 else f"{broker}:0 to {broker}:{most}" for broker, most in last.items())
