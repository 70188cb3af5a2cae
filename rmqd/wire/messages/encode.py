"""Encoding of messages: the bodies of batch sends, and the records that a broker stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import Final
from zlib import crc32

from rmqd.errors import InvalidMessageError
from rmqd.wire.messages.message_id import parse_host
from rmqd.wire.messages.properties import (
    BORN_HOST_V6,
    MAX_PROPERTIES_BYTES,
    STORE_HOST_V6,
    format_properties,
    parse_properties,
)
from rmqd.wire.messages.record import MAGIC_V1, MAGIC_V2, batch_members

MAX_BODY_BYTES: Final = 4 * 1024 * 1024  # Java: maxMessageSize of producers and brokers
_MAX_V1_TOPIC_BYTES: Final = 127
_MAX_TOPIC_BYTES: Final = 0xFFFF
_CRC_MASK: Final = 0x7FFFFFFF  # brokers clear the top bit

_RECORD_HEADS: Final = {
    (BORN_HOST_V6 if born > 8 else 0) | (STORE_HOST_V6 if store > 8 else 0): Struct(f">IIIiiqqiq{born}sq{store}siqi")
    for born in (8, 20)
    for store in (8, 20)
}
"""The layout of a record before its body. The key is the IPv6 bits of the record's born host and store host."""
_SHORT: Final = Struct(">H")
_BATCH_HEAD: Final = Struct(">iiiii")  # total size, magic, CRC, flag, body size; magic and CRC stay zero


@dataclass(slots=True, kw_only=True)  # not frozen: created for every message, and frozen takes three times as long
class StoredMessage:
    """One record of the commit log. If `sys_flag` has COMPRESSED, `body` must be compressed already.

    Hosts are "ip:port" with brackets around IPv6; timestamps are milliseconds since 1970. The two IPv6 bits of
    `sys_flag` are ignored, because they follow from the hosts.
    """

    topic: str
    body: bytes
    queue_id: int = 0
    queue_offset: int = 0
    commit_log_offset: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: str = "127.0.0.1:0"
    store_timestamp: int = 0
    store_host: str = "127.0.0.1:10911"
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)


def encode_message(message: StoredMessage) -> bytes:
    """Return the record of a message. Raises InvalidMessageError if a field does not fit into the record."""
    return encode_record(
        message,
        message.queue_offset,
        message.commit_log_offset,
        message.store_timestamp,
        parse_host(message.store_host),
    )


def encode_record(
    message: StoredMessage, queue_offset: int, commit_log_offset: int, store_timestamp: int, store_host: bytes
) -> bytes:
    """Return a message's record. The other arguments replace the message's fields; `parse_host` makes `store_host`."""
    topic, properties, body = message.topic.encode(), encode_properties(message.properties), message.body
    born_host = parse_host(message.born_host)
    if len(topic) > _MAX_TOPIC_BYTES:
        raise InvalidMessageError(f"a topic name of {len(topic)} bytes is too long; the limit is {_MAX_TOPIC_BYTES}")
    if len(topic) > _MAX_V1_TOPIC_BYTES:
        magic, topic_size = MAGIC_V2, _SHORT.pack(len(topic))
    else:
        magic, topic_size = MAGIC_V1, bytes((len(topic),))
    sys_flag = message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
    sys_flag |= (BORN_HOST_V6 if len(born_host) > 8 else 0) | (STORE_HOST_V6 if len(store_host) > 8 else 0)
    head = _RECORD_HEADS[sys_flag & (BORN_HOST_V6 | STORE_HOST_V6)]
    try:
        packed = head.pack(
            head.size + len(body) + len(topic_size) + len(topic) + _SHORT.size + len(properties),
            magic,
            crc32(body) & _CRC_MASK,
            message.queue_id,
            message.flag,
            queue_offset,
            commit_log_offset,
            sys_flag,
            message.born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            len(body),
        )
    except StructError as error:
        raise InvalidMessageError(f"a message cannot be written: {error}") from error
    return b"".join((packed, body, topic_size, topic, _SHORT.pack(len(properties)), properties))


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the properties string as bytes. Raises InvalidMessageError if it is too long or contains separators."""
    try:
        data = format_properties(properties).encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"a property contains a lone surrogate: {error}") from error
    if len(data) > MAX_PROPERTIES_BYTES:
        raise InvalidMessageError(f"the properties take {len(data)} bytes; expected at most {MAX_PROPERTIES_BYTES}")
    return data


@dataclass(frozen=True, slots=True)
class BatchMember:
    """One message of a batch send. The send's header has the topic and queue of all messages."""

    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0


def encode_batch(messages: Iterable[BatchMember]) -> bytes:
    """Return the body of a SEND_BATCH_MESSAGE request. Raises InvalidMessageError for an invalid message."""
    parts: list[bytes] = []
    for message in messages:
        properties = encode_properties(message.properties)
        size = _BATCH_HEAD.size + len(message.body) + _SHORT.size + len(properties)
        try:
            parts.append(_BATCH_HEAD.pack(size, 0, 0, message.flag, len(message.body)))
        except StructError as error:
            raise InvalidMessageError(f"a message cannot be written: {error}") from error
        parts += [message.body, _SHORT.pack(len(properties)), properties]
    return b"".join(parts)


def decode_batch(body: bytes) -> list[BatchMember]:
    """Return the messages in the body of a SEND_BATCH_MESSAGE request. Raises ProtocolError."""
    return [BatchMember(plain, parse_properties(stored), flag) for flag, plain, stored in batch_members(body)]
