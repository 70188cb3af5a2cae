"""Batches that a broker stores as one record: topics with the attribute queue.type=BatchCQ.

The record's body holds the members as in a producer's batch request: total size (4), magic and CRC (4 each, unused),
flag (4), body size (4), body, properties size (2), properties. The record's offset is the first member's; the offset of
each further member is one higher. The record has all other fields. Java: `MessageDecoder.decodeMessage(MessageExt,
List)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import Final
from zlib import crc32

from rmqd.errors import ProtocolError
from rmqd.wire.messages.sys_flag import COMPRESSED, COMPRESSION_MASK, NEED_UNWRAP

MOST_MEMBERS: Final = 2**15 - 1  # brokers count them in a short

_MAX_OFFSET: Final = 2**63 - 1
_HEAD: Final = Struct(">i8xiI")  # total size, flag, body size
_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_SHORT: Final = Struct(">H")
_CRC_AT, _FLAG_AT, _OFFSET_AT, _SYS_FLAG_AT = 8, 16, 20, 36  # positions in a record's head
_UNPACKED: Final = ~(NEED_UNWRAP | COMPRESSED | COMPRESSION_MASK)


def members(body: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (flag, body, properties as stored) of each message of a batch's body. Raises ProtocolError."""
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
                raise ProtocolError(f"message {count} of a batch announces {total} bytes; its parts take {end - at}")
            yield flag, body[at + _HEAD.size : body_end], body[body_end + _SHORT.size : end]
            at = end
    except StructError as error:
        raise ProtocolError(f"message {count} of a batch is cut short: {size - at} bytes are left for it") from error


def member_records(head: bytes, topic: bytes, base: int, body: bytes) -> list[tuple[bytes, int]]:
    """Return (record, size of its body) of each member, as if stored alone. The first member has the offset `base`.

    `head` and `topic` are parts of the batch's record: the bytes before its body, and the name with its size in front.
    The flag INNER_BATCH stays set and marks a record that the broker does not have. Raises ProtocolError.
    """
    record_head = bytearray(head)
    sys_flag = _INT.unpack_from(head, _SYS_FLAG_AT)[0] & _UNPACKED
    _INT.pack_into(record_head, _SYS_FLAG_AT, sys_flag)
    body_size_at = len(head) - _INT.size
    records: list[tuple[bytes, int]] = []
    for offset, (flag, plain, properties) in enumerate(members(body), base):
        if len(records) == MOST_MEMBERS:
            raise ProtocolError(f"a batch of more than {MOST_MEMBERS} messages")
        if offset > _MAX_OFFSET:
            raise ProtocolError(f"a batch that begins at the offset {base} has members beyond the last possible one")
        total = len(head) + len(plain) + len(topic) + _SHORT.size + len(properties)
        _INT.pack_into(record_head, 0, total)
        _INT.pack_into(record_head, _CRC_AT, crc32(plain) & 0x7FFFFFFF)
        _INT.pack_into(record_head, _FLAG_AT, flag)
        _LONG.pack_into(record_head, _OFFSET_AT, offset)
        _INT.pack_into(record_head, body_size_at, len(plain))
        records.append((b"".join((record_head, plain, topic, _SHORT.pack(len(properties)), properties)), len(plain)))
    return records
