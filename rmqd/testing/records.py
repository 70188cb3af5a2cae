"""Reads what an embedded broker stores, without consuming it."""

from __future__ import annotations

from rmqd.broker.controller import BrokerController
from rmqd.wire.message import Message, MessageQueue, decode_messages


def messages_of(broker: BrokerController, topic: str, queue_id: int, offset: int = 0) -> list[Message]:
    """The messages of a queue from an offset on, in order."""
    place, messages = MessageQueue(topic, broker.name, queue_id), list[Message]()
    offset = max(offset, broker.store.min_offset(topic, queue_id))
    while offset < broker.store.max_offset(topic, queue_id):
        found = broker.store.get(topic, queue_id, offset, 32)
        offset = found.next_begin_offset
        messages += decode_messages(b"".join(found.records), place).messages
    return messages


def messages_of_topic(broker: BrokerController, topic: str) -> list[Message]:
    """All messages of a topic in the order in which they were stored; none where it does not exist."""
    config = broker.topics.get(topic)
    if config is None:
        return []
    found = [message for queue_id in range(config.read_queue_nums) for message in messages_of(broker, topic, queue_id)]
    return sorted(found, key=lambda message: message.commit_log_offset)
