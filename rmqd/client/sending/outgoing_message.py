"""A message to send, and the selection of its queue: messages that must stay in order go to the same queue."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError
from rmqd.errors.broker_errors import BrokerError, BrokerFailureError
from rmqd.wire.bodies.heartbeat_data import java_hash
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import (
    DELAY,
    KEYS,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    WAIT,
)


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to send. `properties` are sent unchanged; fields such as `tags` and `keys` set their properties.

    Give at most one of `delay_level`, `delay_ms` and `deliver_at_ms` (Unix milliseconds). If several are set, a broker
    uses the level, else the delay. `sharding_key` is only a property; a selector sends its messages to one queue.

    `sys_flag` and `born_timestamp_ms` are for messages that were stored before: such a body may already be compressed.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: str = ""
    delay_level: int = 0
    delay_ms: int | None = None
    deliver_at_ms: int | None = None
    sharding_key: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int | None = None

    @property
    def needs_timer(self) -> bool:
        """Whether the message needs the timer of a 5.x broker."""
        return self.delay_ms is not None or self.deliver_at_ms is not None

    def properties_as_sent(self, unique_key: str) -> dict[str, str]:
        """Return all properties, including properties from fields."""
        properties = {**self.properties, UNIQ_KEY: unique_key}
        properties.setdefault(WAIT, "true")
        if self.tags:
            properties[TAGS] = self.tags
        if self.keys:
            properties[KEYS] = self.keys
        if self.delay_level > 0:
            properties[DELAY] = str(self.delay_level)
        if self.delay_ms is not None:
            properties[TIMER_DELAY_MS] = str(self.delay_ms)
        if self.deliver_at_ms is not None:
            properties[TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        if self.sharding_key:
            properties[SHARDING_KEY] = self.sharding_key
        return properties


MessageQueueSelector = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Selects one of the writable queues, which are in RocketMQ's order; there is at least one."""


def select_by_hash(sharding_key: str) -> MessageQueueSelector:
    """Select by the key's hash, as Java's `SelectMessageQueueByHash`: the same queue while their number stays."""
    return lambda queues: queues[abs(java_hash(sharding_key)) % len(queues)]


def select_by_id(queue_id: int, broker_name: str = "") -> MessageQueueSelector:
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


def may_retry_send(error: RmqdError, served: Container[str]) -> bool:
    """Return whether to try again. `served` are the topics of earlier sends.

    A missing route for such a topic is temporary. For others it is final, because waiting does not create a topic.
    """
    if isinstance(error, RouteNotFoundError):
        return error.topic in served
    if isinstance(error, BrokerError):
        return error.retriable or isinstance(error, BrokerFailureError)
    return isinstance(error, RemotingError)
