"""What clients of RocketMQ's schema registry write in front of an Avro record: which schema it was written by.

Their serializer writes an Avro `bytes` of 16: its length, which Avro writes as 0x20, the id of the schema's record as a
long, and 8 zeros.
"""

from __future__ import annotations

from typing import Final

from rmqd.errors import ProtocolError

PREFIX_BYTES: Final = 17
_LENGTH: Final = 0x20
_ZEROS: Final = bytes(8)


def record_id(body: bytes) -> int:
    """The id of the schema's record in the registry. Raises ProtocolError for a body without the prefix."""
    if len(body) < PREFIX_BYTES or body[0] != _LENGTH or body[9:PREFIX_BYTES] != _ZEROS:
        raise ProtocolError("the body does not begin as clients of RocketMQ's schema registry write it")
    return int.from_bytes(body[1:9])


def record_of(body: bytes) -> bytes:
    """The Avro record behind the prefix. Raises ProtocolError for a body without it."""
    record_id(body)
    return body[PREFIX_BYTES:]
