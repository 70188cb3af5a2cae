"""The ROCKETMQ header serialisation. Its codes have 16 bits, so the codes 200xxx do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Final

from rmqd.errors import ProtocolError

_FIXED: Final = Struct(">hBhiii")  # code, language, version, opaque, flag, length of the remark
_INT: Final = Struct(">i")
_KEY_LENGTH: Final = Struct(">H")
_MAX_KEY_BYTES: Final = 0x7FFF


@dataclass(frozen=True, slots=True)
class BinaryHeader:
    """The fields of a binary header. `language` is the byte of LanguageCode."""

    code: int
    language: int
    version: int
    opaque: int
    flag: int
    remark: str | None
    ext_fields: dict[str, str]


def decode_binary_header(data: bytes) -> BinaryHeader:
    """Decode a whole header. Raises ProtocolError."""
    try:
        code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(data)
        remark, at = _text(data, _FIXED.size, remark_size)
        (map_size,) = _INT.unpack_from(data, at)
        at += _INT.size
        if map_size < 0 or at + map_size > len(data):
            raise ProtocolError(f"a header of {len(data)} bytes announces {map_size} bytes of ext fields")
        ext_fields, end = {}, at + map_size
        while at < end:
            key, at = _text(data, at + _KEY_LENGTH.size, *_KEY_LENGTH.unpack_from(data, at))
            value, at = _text(data, at + _INT.size, *_INT.unpack_from(data, at))
            ext_fields[key] = value
    except (StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a binary header is damaged: {error}") from error
    if at != end:
        raise ProtocolError("the ext fields of a binary header are longer than announced")
    return BinaryHeader(code, language, version, opaque, flag, remark or None, ext_fields)


def encode_binary_header(header: BinaryHeader) -> bytes:
    """Encode a header. Raises ProtocolError if a field does not fit, for example a code over 32767."""
    remark = (header.remark or "").encode()
    fields = _encode_map(header.ext_fields)
    try:
        fixed = _FIXED.pack(header.code, header.language, header.version, header.opaque, header.flag, len(remark))
    except StructError as error:
        raise ProtocolError(f"code {header.code} cannot be sent with a binary header: {error}") from error
    return b"".join((fixed, remark, _INT.pack(len(fields)), fields))


def _encode_map(ext_fields: Mapping[str, str]) -> bytes:
    parts = []
    for key, value in ext_fields.items():
        key_bytes, value_bytes = key.encode(), value.encode()
        if len(key_bytes) > _MAX_KEY_BYTES:
            raise ProtocolError(f"the name of an ext field has {len(key_bytes)} bytes; at most {_MAX_KEY_BYTES} fit")
        parts += [_KEY_LENGTH.pack(len(key_bytes)), key_bytes, _INT.pack(len(value_bytes)), value_bytes]
    return b"".join(parts)


def _text(data: bytes, start: int, size: int) -> tuple[str, int]:
    end = start + size
    if size < 0 or end > len(data):
        raise ProtocolError(f"a text of {size} bytes does not fit into a header of {len(data)}")
    return data[start:end].decode(), end
