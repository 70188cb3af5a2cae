"""The prefix that clients of RocketMQ's schema registry write before an Avro record: the id of its schema.

Their serializer writes the id of the schema's record as Avro `bytes`. Since the first release, 0.1.0, they have 8
bytes: the prefix is 0x10, Avro's encoding of that length, and the id. Before, they had 16: 0x20, the id, 8 zeros.
"""

from __future__ import annotations

from typing import Final

from rmqd.errors import ProtocolError

_ID_END: Final = 9
_LENGTH: Final = 0x10
_FORMER_LENGTH: Final = 0x20
_FORMER_ZEROS: Final = bytes(8)


def parted(body: bytes) -> tuple[int, bytes]:
    """Return the schema's record id in the registry, and the Avro record. Raises ProtocolError without a prefix."""
    if len(body) >= _ID_END:
        end = _ID_END if body[0] == _LENGTH else _ID_END + len(_FORMER_ZEROS)
        if body[0] == _LENGTH or (body[0] == _FORMER_LENGTH and body[_ID_END:end] == _FORMER_ZEROS):
            return int.from_bytes(body[1:_ID_END], signed=True), body[end:]
    raise ProtocolError("the body does not begin with the prefix of RocketMQ's schema registry clients")
