"""What clients of RocketMQ's schema registry write in front of an Avro record: which schema it was written by.

Their serializer writes an Avro `bytes` with the id of the schema's record as a long. Since the first release, 0.1.0, it
is of 8 bytes: the prefix is 0x10, as Avro writes that length, and the id. Before, it was of 16: 0x20, the id, 8 zeros.
"""

from __future__ import annotations

from typing import Final

from rmqd.errors import ProtocolError

_ID_END: Final = 9
_LENGTH: Final = 0x10
_FORMER_LENGTH: Final = 0x20
_FORMER_ZEROS: Final = bytes(8)


def parted(body: bytes) -> tuple[int, bytes]:
    """The id of the schema's record in the registry, and the Avro record. Raises ProtocolError for a body without
    the prefix."""
    if len(body) >= _ID_END:
        end = _ID_END if body[0] == _LENGTH else _ID_END + len(_FORMER_ZEROS)
        if body[0] == _LENGTH or (body[0] == _FORMER_LENGTH and body[_ID_END:end] == _FORMER_ZEROS):
            return int.from_bytes(body[1:_ID_END], signed=True), body[end:]
    raise ProtocolError("the body does not begin as clients of RocketMQ's schema registry write it")
