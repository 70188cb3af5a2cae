"""Changes a stream of frames. Lengths, CRCs and compression around the change are mostly corrected.

The module parses frames itself, because rmqd's decoders are the code under test.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from random import Random
from struct import Struct
from struct import error as StructError
from typing import Final

import lz4.frame  # type: ignore[import-untyped]
import zstandard

from tests.nightly.fuzzing.target import Change

_INT: Final = Struct(">I")
_SHORT: Final = Struct(">H")
_LONG: Final = Struct(">q")
_MAGICS: Final = (0xDAA320A7, 0xDAA320AB)
_SYS_FLAG_AT, _OFFSET_AT = 36, 20
_FLAGS: Final = (0x1, 0x2, 0x4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x100, 0x200, 0x300, 0x400, 0x800, 0x80000000)
_MIN_RECORD_BYTES: Final = 91
_PACK: Final[dict[int, Callable[[bytes], bytes]]] = {
    0: zlib.compress,
    1: lz4.frame.compress,
    2: zstandard.ZstdCompressor().compress,
    3: zlib.compress,
}
_UNPACK: Final[dict[int, Callable[[bytes], bytes]]] = {
    0: lambda data: zlib.decompressobj().decompress(data, 4096),
    1: lambda data: lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=4096),
    2: lambda data: zstandard.ZstdDecompressor().stream_reader(data).read(4096),
    3: lambda data: zlib.decompressobj().decompress(data, 4096),
}


def changed_stream(stream: bytes, most_bytes: int, chance: Random, change: Change) -> bytes:
    """Return the stream with one frame changed, removed or duplicated."""
    frames, rest = _cut_frames(stream)
    if not frames:
        return _framed(b"\0", change(rest[4:], most_bytes - 8), b"")[:most_bytes]
    at = chance.randrange(len(frames))
    if (kind := chance.random()) < 0.03:
        del frames[at]
    elif kind < 0.06:
        frames.insert(at, frames[at])
    elif kind < 0.08:
        rest = change(rest or b"\0", 64)
    else:
        room = most_bytes - len(stream) + len(frames[at])
        frames[at] = _changed_frame(frames[at], max(64, room), chance, change)
    return b"".join([*frames, rest])[:most_bytes]


def _cut_frames(stream: bytes) -> tuple[list[bytes], bytes]:
    frames, at = [], 0
    while at + 4 <= len(stream):
        end = at + 4 + _INT.unpack_from(stream, at)[0]
        if end > len(stream):
            break
        frames.append(stream[at:end])
        at = end
    return frames, stream[at:]


def _framed(kind: bytes, header: bytes, body: bytes) -> bytes:
    return _INT.pack(4 + len(header) + len(body)) + kind[:1] + len(header).to_bytes(3) + header + body


def _changed_frame(frame: bytes, most_bytes: int, chance: Random, change: Change) -> bytes:
    payload = frame[4:]
    end = 4 + int.from_bytes(payload[1:4]) if len(payload) >= 4 else len(payload) + 1
    if end > len(payload):
        return _framed(b"\0", change(payload, most_bytes), b"")
    kind, header, body = payload[:1], payload[4:end], payload[end:]
    if (choice := chance.random()) < 0.02:
        kind = bytes([chance.choice([0, 1, 1, 2, 255])])
    elif choice < 0.35 or not body:
        part = _changed_binary_header if kind == b"\1" else _changed_text
        header = part(header, max(16, most_bytes - len(body) - 8), chance, change)
        if not body and chance.random() < 0.1:
            body = change(b"{}", 64)
    else:
        body = changed_body(body, max(16, most_bytes - len(header) - 8), chance, change)
    return _framed(kind, header, body)


def _changed_text(text: bytes, most_bytes: int, chance: Random, change: Change) -> bytes:
    """Change one value of a JSON text, or any bytes."""
    marks = [at for at in range(len(text)) if text[at] == 58]  # colons
    if not marks or chance.random() < 0.4:
        return change(text, most_bytes)
    start = chance.choice(marks) + 1
    ends = [at for at in (text.find(sign, start) for sign in (b",", b"}", b"]")) if at >= 0]
    end = min(ends, default=len(text))
    room = max(8, most_bytes - len(text) + end - start)
    value = text[start:end]
    if value[:1] == value[-1:] == b'"' and chance.random() < 0.8:
        return text[:start] + b'"' + change(value[1:-1], room) + b'"' + text[end:]
    return text[:start] + change(value, room) + text[end:]


def _changed_binary_header(header: bytes, most_bytes: int, chance: Random, change: Change) -> bytes:
    """Change the fixed fields, the remark or the ext fields, and correct the lengths of the last two."""
    try:
        (remark_bytes,) = _INT.unpack_from(header, 17 - 4)
        remark_end = 17 + remark_bytes
        fixed, remark, fields = header[:13], header[17:remark_end], header[remark_end + 4 :]
    except StructError:
        return change(header, most_bytes)
    if (kind := chance.random()) < 0.2:
        fixed = change(fixed, 13).ljust(13, b"\0")[:13]
    elif kind < 0.3:
        remark = change(remark, 64)
    elif kind < 0.9:
        pairs = _cut_pairs(fields)
        if pairs is None or not pairs:
            fields = change(fields, most_bytes)
        else:
            at, side = chance.randrange(len(pairs)), chance.randrange(2)
            pairs[at][side] = change(pairs[at][side], 128)
            fields = b"".join(_SHORT.pack(len(k) & 0xFFFF) + k + _INT.pack(len(v)) + v for k, v in pairs)
    else:
        return change(header, most_bytes)
    return fixed + _INT.pack(len(remark)) + remark + _INT.pack(len(fields)) + fields


def _cut_pairs(fields: bytes) -> list[list[bytes]] | None:
    pairs, at = [], 0
    try:
        while at < len(fields):
            key_end = at + 2 + _SHORT.unpack_from(fields, at)[0]
            value_end = key_end + 4 + _INT.unpack_from(fields, key_end)[0]
            pairs.append([fields[at + 2 : key_end], fields[key_end + 4 : value_end]])
            at = value_end
    except StructError:
        return None
    return pairs


def changed_body(body: bytes, most_bytes: int, chance: Random, change: Change) -> bytes:
    """Change a body of records, of batch members or of JSON."""
    records = _cut_records(body)
    if records is None:
        members = _cut_members(body)
        if members:
            return _changed_members(members, most_bytes, chance, change)
        return _changed_text(body, most_bytes, chance, change)
    at = chance.randrange(len(records))
    if (kind := chance.random()) < 0.05:
        del records[at]
    elif kind < 0.12:
        records.insert(at, records[at])
    elif kind < 0.17:
        return change(body, most_bytes)
    else:
        room = max(64, most_bytes - len(body) + len(records[at]))
        records[at] = _changed_record(records[at], room, chance, change)
    return b"".join(records)


def _cut_records(body: bytes) -> list[bytes] | None:
    records, at = [], 0
    while at < len(body):
        if at + _MIN_RECORD_BYTES > len(body) or _INT.unpack_from(body, at + 4)[0] not in _MAGICS:
            return None
        end = at + _INT.unpack_from(body, at)[0]
        if not at + _MIN_RECORD_BYTES <= end <= len(body):
            return None
        records.append(body[at:end])
        at = end
    return records or None


def _head_bytes(sys_flag: int) -> int:
    """Return the size of a record before its body."""
    return 88 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)


def _changed_record(record: bytes, most_bytes: int, chance: Random, change: Change) -> bytes:
    """Change one part, and correct the total size, the CRC and the lengths of body, topic and properties."""
    try:
        (sys_flag,) = _INT.unpack_from(record, _SYS_FLAG_AT)
        head_bytes = _head_bytes(sys_flag)
        head = bytearray(record[:head_bytes])
        body_end = head_bytes + _INT.unpack_from(record, head_bytes - 4)[0]
        wide = record[7] == 0xAB
        topic_start = body_end + (2 if wide else 1)
        topic_end = topic_start + int.from_bytes(record[body_end:topic_start])
        body, topic = record[head_bytes:body_end], record[topic_start:topic_end]
        properties = record[topic_end + 2 :]
    except (StructError, IndexError):
        return change(record, most_bytes)
    room = max(16, most_bytes - len(record))
    if (kind := chance.random()) < 0.1:
        new_flag = sys_flag ^ chance.choice(_FLAGS)
        grown = _head_bytes(new_flag) - head_bytes
        head[48:48] = bytes(max(0, grown))
        del head[48 : 48 + max(0, -grown)]
        _INT.pack_into(head, _SYS_FLAG_AT, new_flag)
    elif kind < 0.2:
        _LONG.pack_into(head, _OFFSET_AT, chance.choice([0, -1, 2**63 - 1, chance.randrange(64)]))
    elif kind < 0.3:
        at = chance.randrange(12, len(head) - 4)
        head[at : at + 4] = change(bytes(head[at : at + 4]), 4).ljust(4, b"\0")[:4]
    elif kind < 0.55:
        body = _changed_stored_body(body, sys_flag, room + len(body), chance, change)
    elif kind < 0.65:
        topic = change(topic, 300)
        if (len(topic) > 255) != wide:
            wide = len(topic) > 255
    elif kind < 0.9:
        properties = _changed_properties(properties, room + len(properties), chance, change)
    elif kind < 0.95:
        return change(record, most_bytes)
    else:
        wide = not wide
    properties = properties[:0xFFFF]
    topic = topic[: 0xFFFF if wide else 0xFF]
    tail = len(topic).to_bytes(2 if wide else 1) + topic + _SHORT.pack(len(properties)) + properties
    _INT.pack_into(head, 0, len(head) + len(body) + len(tail))
    _INT.pack_into(head, 4, _MAGICS[wide])
    if chance.random() < 0.95:
        _INT.pack_into(head, 8, zlib.crc32(body) & 0x7FFFFFFF)
    _INT.pack_into(head, len(head) - 4, len(body))
    return bytes(head) + body + tail


def _changed_stored_body(body: bytes, sys_flag: int, most_bytes: int, chance: Random, change: Change) -> bytes:
    """Change the plain body and compress it again, or change the compressed bytes."""
    kind = (sys_flag & 0x700) >> 8
    if not sys_flag & 0x1 or kind not in _PACK or chance.random() < 0.3:
        return _changed_batch(body, sys_flag, most_bytes, chance, change)
    try:
        plain = _UNPACK[kind](body)
    except (zlib.error, RuntimeError, zstandard.ZstdError, ValueError, EOFError):
        return change(body, most_bytes)
    if chance.random() < 0.05:
        return body + body  # several compressed frames, which Java can read
    return _PACK[kind](_changed_batch(plain, sys_flag, most_bytes, chance, change))


def _changed_batch(body: bytes, sys_flag: int, most_bytes: int, chance: Random, change: Change) -> bytes:
    members = _cut_members(body) if sys_flag & 0x80 else None
    return _changed_members(members, most_bytes, chance, change) if members else change(body, most_bytes)


def _cut_members(body: bytes) -> list[bytes] | None:
    """Return the messages of a batch, or None if the body is not a batch."""
    members, at = [], 0
    while at < len(body):
        if at + 22 > len(body):
            return None
        total = _INT.unpack_from(body, at)[0]
        if not 22 <= total <= len(body) - at:
            return None
        members.append(body[at : at + total])
        at += total
    return members


def _changed_members(members: list[bytes], most_bytes: int, chance: Random, change: Change) -> bytes:
    at = chance.randrange(len(members))
    if (kind := chance.random()) < 0.1:
        del members[at]
    elif kind < 0.2:
        members.insert(at, members[at])
    elif kind < 0.3:
        members[at] = change(members[at], 256)
    else:
        one = members[at]
        body_end = 20 + _INT.unpack_from(one, 16)[0]
        body, properties = one[20:body_end], one[body_end + 2 :]
        if kind < 0.6:
            body = change(body, 256)
        else:
            properties = _changed_properties(properties, 256, chance, change)[:0xFFFF]
        total = 22 + len(body) + len(properties)
        sizes = _SHORT.pack(len(properties)) + properties
        members[at] = _INT.pack(total) + one[4:16] + _INT.pack(len(body)) + body + sizes
    return b"".join(members)[:most_bytes]


def _changed_properties(properties: bytes, most_bytes: int, chance: Random, change: Change) -> bytes:
    """Change a name or value; bytes 1 and 2 separate them."""
    pairs = properties.split(b"\x02")
    if chance.random() < 0.2:
        return change(properties, most_bytes)
    at = chance.randrange(len(pairs))
    name, mark, value = pairs[at].partition(b"\x01")
    if (kind := chance.random()) < 0.2:
        name = change(name, 64)
    elif kind < 0.3:
        pairs.insert(at, change(name, 64) + b"\x01" + value)
        return b"\x02".join(pairs)[:most_bytes]
    else:
        value = change(value, max(8, most_bytes - len(properties) + len(value)))
    pairs[at] = name + (mark or b"\x01") + value
    return b"\x02".join(pairs)[:most_bytes]
