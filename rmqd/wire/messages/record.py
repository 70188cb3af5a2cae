"""One stored message, the record: its fields are read from the record's bytes on access.

Layout of a record, as `MessageDecoder.java` reads it; all numbers are big-endian:

| at | size | field             |    | at | size | field                     |
|----|------|-------------------|----|----|------|---------------------------|
| 0  | 4    | total size        |    | 40 | 8    | born timestamp (ms)       |
| 4  | 4    | magic (V1, V2)    |    | 48 | 8/20 | born host                 |
| 8  | 4    | body CRC          |    | +0 | 8    | store timestamp (ms)      |
| 12 | 4    | queue id          |    | +8 | 8/20 | store host                |
| 16 | 4    | flag              |    | +0 | 4    | reconsume times           |
| 20 | 8    | queue offset      |    | +4 | 8    | prepared transaction off. |
| 28 | 8    | commit log offset |    | +12| 4    | body length, then body    |
| 36 | 4    | sys flag          |    |    |      | topic, properties         |

A host takes 8 bytes with an IPv4 address, and 20 with an IPv6 address; bits of the sys flag select the size. The topic
begins with its length (one byte, or two with MAGIC_V2), and the properties begin with their length (two bytes). All
fields after the hosts have a fixed distance from the body's start, and topic and properties are found from the body's
end. So a Record stores three positions: the record's start, the body's start and the body's end.

In topics with the attribute queue.type=BatchCQ, a broker stores a batch of messages (the members) as one record.

The body of a batch's record contains the members as in a producer's batch request: total size (4), magic and CRC (4
each, unused), flag (4), body size (4), body, properties size (2), properties. The record's queue offset belongs to the
first member; the offset of each further member is one higher. All other fields of a member are from the record. Java:
`MessageDecoder.decodeMessage(MessageExt, List)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import Final, Protocol
from zlib import crc32

from rmqd.errors import ProtocolError
from rmqd.wire.messages.message_id import format_host, offset_message_id
from rmqd.wire.messages.properties import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_MASK,
    ENCODED_FLAGS,
    INNER_BATCH,
    NEED_UNWRAP,
    STORE_HOST_V6,
    TAGS,
)

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB  # the topic's length takes two bytes

_INT = Struct(">i")
_LONG = Struct(">q")
_SHORT = Struct(">H")
_TAGS_HEAD: Final = TAGS.encode() + b"\x01"
_TAGS_INNER: Final = b"\x02" + _TAGS_HEAD


class _Block(Protocol):
    """The bytes of a response; in practice a MessageBlock."""

    data: bytes


class Record:
    """One record in the bytes of a block. The decoder has checked that the bytes contain the whole record."""

    __slots__ = ("_body_end", "_body_start", "_start", "block")

    _body_end: int
    _body_start: int
    _start: int
    block: _Block

    @property
    def store_size(self) -> int:
        """The number of bytes that the record takes in the commit log."""
        return self._int(0)

    @property
    def body_crc(self) -> int:
        """The CRC-32 of the stored body. Brokers clear the top bit."""
        return self._int(8)

    @property
    def stored_queue_id(self) -> int:
        """The queue id in the record. It is needed for pops, whose responses may have records of several queues."""
        return self._int(12)

    @property
    def flag(self) -> int:
        """The integer that the producer set as the message's flag."""
        return self._int(16)

    @property
    def commit_log_offset(self) -> int:
        """The byte position of the record in the broker's commit log. A send-back identifies the message by it."""
        return self._long(28)

    @property
    def sys_flag(self) -> int:
        """RocketMQ's system flags, as stored: the constants COMPRESSED to COMPRESSION_MASK in `properties`."""
        return self._int(36)

    @property
    def born_timestamp(self) -> int:
        """The time when the producer created the message, in milliseconds since 1970."""
        return self._long(40)

    @property
    def born_host(self) -> str:
        """The producer's address, `ip:port`."""
        start = self._start + 48
        return format_host(self.block.data[start : start + (20 if self.sys_flag & BORN_HOST_V6 else 8)])

    @property
    def store_host(self) -> str:
        """The storing broker's address, `ip:port`."""
        start, size = self._store_host_span()
        return format_host(self.block.data[start : start + size])

    @property
    def prepared_transaction_offset(self) -> int:
        """The commit log offset of the transaction's half message; 0 if there is no transaction."""
        offset: int = _LONG.unpack_from(self.block.data, self._body_start - 12)[0]
        return offset

    @property
    def offset_msg_id(self) -> str:
        """The offset id of the message: the storing broker's address and the commit log offset, in hex digits."""
        start, size = self._store_host_span()
        return offset_message_id(self.block.data[start : start + size], self.commit_log_offset)

    @property
    def record_topic(self) -> str:
        """The topic in the record. For a retried message, this is the retry topic."""
        start, length = self._topic_span()
        return self.block.data[start : start + length].decode("utf-8", "replace")

    @property
    def stored_body(self) -> bytes:
        """The body as stored. It is compressed if the producer compressed it."""
        return self.block.data[self._body_start : self._body_end]

    @property
    def stored_size(self) -> int:
        """The size of the body as stored, in bytes."""
        return self._body_end - self._body_start

    @property
    def record(self) -> bytes:
        """The record's bytes. For a member of a batch, rmqd has created a record as if the broker stored it alone."""
        return self.block.data[self._start : self._start + self.store_size]

    @property
    def is_body_encoded(self) -> bool:
        """Whether the stored body must be decompressed, or split as a batch, before handlers get it."""
        return bool(self.sys_flag & ENCODED_FLAGS)

    @property
    def is_batch_member(self) -> bool:
        """Whether the message is part of a batch that the broker stores as one record."""
        return bool(self.sys_flag & INNER_BATCH)

    @property
    def byte_position(self) -> int:
        """The byte position of the record in the response."""
        return self._start

    def record_parts(self) -> tuple[bytes, bytes]:
        """Return two parts of the record: all bytes before the body, and the topic's length followed by the topic."""
        start, length = self._topic_span()
        data = self.block.data
        return data[self._start : self._body_start], data[self._body_end : start + length]

    def has_tag(self, tags: frozenset[bytes]) -> bool:
        """Return whether the message's tag is one of `tags`. Searches the stored bytes, without parsing properties."""
        start, end = self._properties_span()
        data = self.block.data
        if data.startswith(_TAGS_HEAD, start, end):
            at = start + len(_TAGS_HEAD)
        else:
            at = data.find(_TAGS_INNER, start, end) + len(_TAGS_INNER)
            if at < len(_TAGS_INNER):
                return False
        stop = data.find(b"\x02", at, end)
        return data[at : end if stop < 0 else stop] in tags

    def _int(self, at: int) -> int:
        value: int = _INT.unpack_from(self.block.data, self._start + at)[0]
        return value

    def _long(self, at: int) -> int:
        value: int = _LONG.unpack_from(self.block.data, self._start + at)[0]
        return value

    def _store_host_span(self) -> tuple[int, int]:
        size = 20 if self.sys_flag & STORE_HOST_V6 else 8
        return self._body_start - 16 - size, size

    def _topic_span(self) -> tuple[int, int]:
        data, at = self.block.data, self._body_end
        if data[self._start + 7] == MAGIC_V2 & 0xFF:
            return at + 2, _SHORT.unpack_from(data, at)[0]
        return at + 1, data[at]

    def _properties_span(self) -> tuple[int, int]:
        start, length = self._topic_span()
        at = start + length
        return at + 2, at + 2 + _SHORT.unpack_from(self.block.data, at)[0]


MAX_BATCH_MEMBERS: Final = 2**15 - 1  # brokers store the number of members in a short

_MAX_OFFSET: Final = 2**63 - 1
_HEAD: Final = Struct(">i8xiI")  # total size, flag, body size
_CRC_AT, _FLAG_AT, _OFFSET_AT, _SYS_FLAG_AT = 8, 16, 20, 36  # positions in a record's head
_UNPACKED: Final = ~(NEED_UNWRAP | COMPRESSED | COMPRESSION_MASK)


def batch_members(body: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (flag, body, stored properties) of each message in the body of a batch. Raises ProtocolError."""
    at, size, count = 0, len(body), 0
    try:
        while at < size:
            count += 1
            total, flag, body_size = _HEAD.unpack_from(body, at)
            body_end = at + _HEAD.size + body_size
            end = body_end + _SHORT.size + _SHORT.unpack_from(body, body_end)[0]
            if end > size:
                raise ProtocolError(f"message {count} of a batch is cut short: {end - size} of its bytes are missing")
            if end - at != total:
                raise ProtocolError(f"message {count} of a batch claims {total} bytes, but its parts take {end - at}")
            yield flag, body[at + _HEAD.size : body_end], body[body_end + _SHORT.size : end]
            at = end
    except StructError as error:
        raise ProtocolError(f"message {count} of a batch is cut short: {size - at} bytes are left for it") from error


def batch_member_records(head: bytes, topic: bytes, base: int, body: bytes) -> list[tuple[bytes, int]]:
    """Return a record for each member of a batch, as if the broker stored it alone, and the size of the record's body.

    `head` and `topic` are the `record_parts` of the batch's record, `body` is its decompressed body, and `base` is the
    first member's offset. The flag INNER_BATCH stays set: the broker does not have these records. Raises ProtocolError.
    """
    record_head = bytearray(head)
    sys_flag = _INT.unpack_from(head, _SYS_FLAG_AT)[0] & _UNPACKED
    _INT.pack_into(record_head, _SYS_FLAG_AT, sys_flag)
    body_size_at = len(head) - _INT.size
    records: list[tuple[bytes, int]] = []
    for offset, (flag, plain, properties) in enumerate(batch_members(body), base):
        if len(records) == MAX_BATCH_MEMBERS:
            raise ProtocolError(f"the batch has more than {MAX_BATCH_MEMBERS} messages")
        if offset > _MAX_OFFSET:
            raise ProtocolError(
                f"a batch that begins at the offset {base} has messages beyond the highest possible offset"
            )
        total = len(head) + len(plain) + len(topic) + _SHORT.size + len(properties)
        _INT.pack_into(record_head, 0, total)
        _INT.pack_into(record_head, _CRC_AT, crc32(plain) & 0x7FFFFFFF)
        _INT.pack_into(record_head, _FLAG_AT, flag)
        _LONG.pack_into(record_head, _OFFSET_AT, offset)
        _INT.pack_into(record_head, body_size_at, len(plain))
        records.append((b"".join((record_head, plain, topic, _SHORT.pack(len(properties)), properties)), len(plain)))
    return records
