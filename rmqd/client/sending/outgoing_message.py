"""A message to send, and selectors that choose its queue, so that messages with the same key stay in order."""

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
    """A message to send. Fields such as `tags` and `keys` are sent as properties, in addition to `properties`.

    Give at most one of `delay_level`, `delay_ms` and `deliver_at_ms` (Unix milliseconds). If several are set, a broker
    uses the level, else the delay. `sharding_key` is only stored as a property and does not choose the queue.

    `sys_flag` and `born_timestamp_ms` are for copies of stored messages, whose body may be compressed already.
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
        """Whether the message has a delay or time that only the timer of a 5.x broker supports."""
        return self.delay_ms is not None or self.deliver_at_ms is not None

    def properties_as_sent(self, unique_key: str) -> dict[str, str]:
        """Return `properties` and the properties from the other fields, as the broker will store them."""
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
"""Called with the topic's writable queues (at least one, in RocketMQ's order). Returns the queue to send to."""


def select_by_hash(sharding_key: str) -> MessageQueueSelector:
    """Return a selector by a key's hash (Java: `SelectMessageQueueByHash`), which depends on the number of queues."""
    return lambda queues: queues[abs(java_hash(sharding_key)) % len(queues)]


def select_by_id(queue_id: int, broker_name: str = "") -> MessageQueueSelector:
    """Return a selector of the queue with this id. Give `broker_name` if several brokers have the topic.

    The selector raises RouteNotFoundError if no queue matches, or if several queues match.
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
    """Return whether a failed send may succeed later. `served` are the topics of earlier successful sends.

    A missing route is temporary for a topic in `served`, and final for any other topic, which probably does not exist.
    """
    if isinstance(error, RouteNotFoundError):
        return error.topic in served
    if isinstance(error, BrokerError):
        return error.retriable or isinstance(error, BrokerFailureError)
    return isinstance(error, RemotingError)
