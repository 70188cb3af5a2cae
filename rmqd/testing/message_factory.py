"""Creates messages and batches for tests that call a handler without a broker, and reads a broker's messages."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from typing import Any, Final, Literal

from rmqd.broker.controller import BrokerController
from rmqd.errors import InvalidMessageError
from rmqd.handler_api.batch import Batch, KnownLease, ManualCommitBatch, OrderlyBatch
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.message_id import UniqueKeys
from rmqd.wire.messages.properties import KEYS, TAGS, UNIQ_KEY

Body = bytes | bytearray | memoryview | str | Mapping[str, Any] | list[Any]
"""The body of a message. Text is sent as UTF-8, a mapping or list as JSON."""

TOPIC: Final = "TopicTest"  # the topic of RocketMQ's own examples
BROKER_NAME: Final = "broker-a"

_unique_keys = UniqueKeys(bytes((127, 0, 0, 1)), 1, 1)
_offsets = itertools.count()


def make_message(
    body: Body = b"",
    *,
    topic: str = TOPIC,
    keys: str | None = None,
    tags: str | None = None,
    properties: Mapping[str, str] | None = None,
    msg_id: str | None = None,
    queue_id: int = 0,
    queue_offset: int | None = None,
    broker_name: str = BROKER_NAME,
    commit_log_offset: int = 0,
    born_timestamp: int | None = None,
    store_timestamp: int | None = None,
    born_host: str = "127.0.0.1:50000",
    store_host: str = "127.0.0.1:10911",
    reconsume_times: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    min_offset: int | None = None,
    max_offset: int | None = None,
) -> Message:
    """Create a message as a handler receives it. The parameters have RocketMQ's names.

    Timestamps are milliseconds since 1970, by default the current time. By default `queue_offset` increases with each
    message. `min_offset` and `max_offset` are the queue's ends; None for a message that was not pulled. Raises
    InvalidMessageError if a broker could not store the message, or if a consumer could not read its body, for example
    because `sys_flag` says that a plain body is compressed.
    """
    now = time.time()
    properties = as_properties(properties or {})
    for name, value in ((KEYS, keys), (TAGS, tags), (UNIQ_KEY, msg_id)):
        if value is not None:
            properties[name] = value
    properties.setdefault(UNIQ_KEY, _unique_keys.next(now))
    record = encode_message(
        StoredMessage(
            topic=topic,
            body=as_bytes(body),
            queue_id=queue_id,
            queue_offset=next(_offsets) if queue_offset is None else queue_offset,
            commit_log_offset=commit_log_offset,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp=int(now * 1000) if born_timestamp is None else born_timestamp,
            born_host=born_host,
            store_timestamp=int(now * 1000) if store_timestamp is None else store_timestamp,
            store_host=store_host,
            reconsume_times=reconsume_times,
            properties=properties,
        )
    )
    block = decode_messages(record, MessageQueue(topic, broker_name, queue_id))
    if block.corrupt:
        raise InvalidMessageError(f"no consumer could read the message: {block.corrupt[0].reason}")
    block.min_offset, block.max_offset = min_offset, max_offset
    return block.messages[0]


def make_batch(
    *messages: Message,
    consume_mode: Literal["concurrently", "orderly"] = "concurrently",
    auto_commit: bool = True,
    revoked: bool = False,
) -> Batch:
    """Create a batch for a handler. After the handler's call, `batch.decisions()` has its decisions by message index.

    Raises ValueError if the messages are from several queues. Without messages, the batch has one new message. In an
    orderly group, `revoked` means that the queue's lock is lost, and `auto_commit=False` enables `commit()` and
    `rollback()`.
    """
    messages = messages or (make_message(),)
    queues = dict.fromkeys(message.message_queue for message in messages)
    if len(queues) > 1:
        raise ValueError(
            f"the messages of a batch must be from one queue; these are from {', '.join(map(str, queues))}"
        )
    if consume_mode == "orderly":
        kind = OrderlyBatch if auto_commit else ManualCommitBatch
        return kind(KnownLease(valid=not revoked), list(messages), messages[0].message_queue)
    if consume_mode != "concurrently":
        raise ValueError(f"unknown consume_mode {consume_mode!r}; expected concurrently or orderly")
    if revoked or not auto_commit:
        raise ValueError("revoked and auto_commit=False need consume_mode='orderly'")
    return Batch(list(messages), messages[0].message_queue)


def as_bytes(body: Body) -> bytes:
    """Return the bytes to send for a body. Raises TypeError if the value cannot be a body."""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if isinstance(body, Mapping | list):
        return json.dumps(body, ensure_ascii=False).encode()
    raise TypeError(
        f"a body cannot be {type(body).__name__}; expected bytes, text, or a mapping or list to send as JSON"
    )


def as_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the properties. Raises TypeError if a value is not text."""
    for name, value in properties.items():
        if not isinstance(value, str):
            raise TypeError(f"property {name!r} cannot be {type(value).__name__}; expected text")
    return dict(properties)


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
