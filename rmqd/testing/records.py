"""Reads the messages that an embedded broker stores, without consuming them."""

from __future__ import annotations

from rmqd.broker.controller import BrokerController
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.message import Message

_AT_ONCE = 32


def messages_of(broker: BrokerController, topic: str) -> list[Message]:
    """Return all messages of a topic in storage order; none if the topic does not exist."""
    config = broker.topics.get(topic)
    queues = 0 if config is None else config.read_queue_nums
    found = [message for queue_id in range(queues) for message in _of_queue(broker, topic, queue_id)]
    return sorted(found, key=lambda message: message.commit_log_offset)


def _of_queue(broker: BrokerController, topic: str, queue_id: int) -> list[Message]:
    place, messages = MessageQueue(topic, broker.name, queue_id), list[Message]()
    offset = broker.store.min_offset(topic, queue_id)
    while offset < broker.store.max_offset(topic, queue_id):
        found = broker.store.get(topic, queue_id, offset, _AT_ONCE)
        offset = found.next_begin_offset
        messages += decode_messages(b"".join(found.records), place).messages
    return messages
