"""Priority topics (RIP-80): a message's priority is its queue id, and pops read the queues in order of priority."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmqd.errors import ProtocolError
from rmqd.wire.bodies.settings import SubscriptionGroupConfig, TopicConfig
from rmqd.wire.fields import parse_integer
from rmqd.wire.messages.properties import (
    DELAY,
    PRIORITY,
    SHARDING_KEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
)
from rmqd.wire.topic_kinds import MESSAGE_TYPE

_FACTOR: Final = "priority.factor"
_ALWAYS: Final = 100
_OTHER_KINDS: Final = frozenset((DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, SHARDING_KEY))


def queue_by_priority(properties: dict[str, str], config: TopicConfig) -> int | None:
    """Return the queue for a message's priority, whatever the topic's type; None without a priority.

    Delayed messages, messages with a sharding key, and messages of a transaction have no priority: the property is
    removed. Java: `SendMessageProcessor.sendMessage`, `TopicMessageType.parseFromMessageProperty`.
    """
    try:
        priority = parse_integer(properties.get(PRIORITY, "-1"), PRIORITY)
    except ProtocolError:
        return None
    if priority < 0:
        return None
    if _OTHER_KINDS.isdisjoint(properties) and properties.get(TRANSACTION_PREPARED, "").lower() != "true":
        return min(priority, config.write_queue_nums - 1)
    del properties[PRIORITY]
    return None


def pops_by_priority(topic: TopicConfig | None, group: SubscriptionGroupConfig | None, dice: int) -> bool:
    """Return whether a pop with this random number, 0 to 99, reads the queues in order of priority.

    The group's attribute `priority.factor` is the percentage of its pops that do so.
    """
    if topic is None or topic.attributes.get(MESSAGE_TYPE) != "PRIORITY":
        return False
    return dice < _factor({} if group is None else group.attributes)


def _factor(attributes: Mapping[str, str]) -> int:
    try:
        return parse_integer(attributes.get(_FACTOR, str(_ALWAYS)), _FACTOR)
    except ProtocolError:
        return _ALWAYS
