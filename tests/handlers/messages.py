"""Messages and batches for a handler's tests, made of the bytes that a broker would send."""

from __future__ import annotations

from collections.abc import Mapping

from rmqd import Batch, Message, MessageQueue
from rmqd.wire.message import decode_messages
from rmqd.wire.message_encode import StoredMessage, encode_message
from rmqd.wire.properties import KEYS, TAGS, UNIQ_KEY

QUEUE = MessageQueue("orders", "broker-a", 3)


def make_message(
    body: bytes = b"",
    *,
    keys: str | None = None,
    tags: str | None = None,
    queue_offset: int = 0,
    properties: Mapping[str, str] | None = None,
) -> Message:
    """A message of the queue `QUEUE`."""
    named = {KEYS: keys, TAGS: tags, UNIQ_KEY: f"7F00000100002A139A55{queue_offset:012X}"}
    stored = StoredMessage(
        topic=QUEUE.topic,
        body=body,
        queue_id=QUEUE.queue_id,
        queue_offset=queue_offset,
        commit_log_offset=queue_offset * 1000,
        born_timestamp=1_767_225_600_000,
        born_host="127.0.0.1:12345",
        store_timestamp=1_767_225_600_005,
        properties={**(properties or {}), **{name: value for name, value in named.items() if value is not None}},
    )
    return decode_messages(encode_message(stored), QUEUE).messages[0]


def make_batch(*messages: Message) -> Batch:
    """A batch of these messages."""
    return Batch(list(messages), QUEUE)
