"""Dead letters in the form in which the group would receive them again."""

from __future__ import annotations

from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import retry_topic


def as_retried(letter: Message, group: str) -> Message:
    """Return the message as in the group's retry topic, at its first attempt. So it shows its original topic.

    It keeps its queue and offset in the dead-letter topic.
    """
    topic = retry_topic(group)
    record = encode_message(
        StoredMessage(
            topic=topic,
            body=letter.stored_body,
            queue_id=letter.stored_queue_id,
            queue_offset=letter.queue_offset,
            commit_log_offset=letter.commit_log_offset,
            flag=letter.flag,
            sys_flag=letter.sys_flag,
            born_timestamp=letter.born_timestamp,
            born_host=letter.born_host,
            store_timestamp=letter.store_timestamp,
            store_host=letter.store_host,
            properties=letter.stored_properties,
        )
    )
    queue = MessageQueue(topic, letter.broker_name, letter.queue_id)
    return decode_messages(record, queue, namespace=letter.block.namespace).messages[0]
