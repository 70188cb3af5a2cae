"""A message to send, its properties, and the result of the send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmqd.codes import ResponseCode
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

    The last four are for messages that were stored before: their body may be compressed already, and they have a number
    of reconsume times.
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
    reconsume_times: int = 0
    max_reconsume_times: int | None = None

    @property
    def is_timed(self) -> bool:
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


@dataclass(frozen=True, slots=True)
class SendResult:
    """A stored message's position. `msg_id` is its unique key; `offset_msg_id` is its place in the broker's log."""

    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    status: ResponseCode
    region: str
    """The broker's region, for message trace."""
    is_traced: bool
    """Whether the broker wants message trace of stored messages."""
    recall_handle: str | None = None
    """The handle for `Producer.recall`; None if the message is not timed, or cannot be recalled."""
