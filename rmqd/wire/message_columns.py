"""Stored messages decoded straight into columns, for readers that want tables: several times as fast as views.

The layout is that of `message`. What costs is done for all messages of a batch at once: fixed fields are unpacked in
one go for each record and turned by `zip`; properties and names are kept as bytes until somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from struct import Struct
from struct import error as StructError
from typing import Any, Final
from zlib import crc32

from rmqd.errors import ProtocolError
from rmqd.wire.compression import decompress
from rmqd.wire.message import MAGIC_V1, MAGIC_V2
from rmqd.wire.message_id import format_host
from rmqd.wire.properties import ENTRY_END, KEY_END, TAGS, parse_properties
from rmqd.wire.sys_flag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6

FIXED: Final = (
    "store_size magic body_crc queue_id flag queue_offset commit_log_offset sys_flag born_timestamp born_host "
    "store_timestamp store_host reconsume_times body_size".split()
)


def _fixed(born: int, store: int) -> Struct:
    return Struct(f">IIIiiqqiq{born}sq{store}si8xI")


_IPV4: Final = _fixed(8, 8)
_unpack: Final = _IPV4.unpack_from
_BY_HOSTS: Final = {
    BORN_HOST_V6: _fixed(20, 8),
    STORE_HOST_V6: _fixed(8, 20),
    BORN_HOST_V6 | STORE_HOST_V6: _fixed(20, 20),
}
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_SHORT: Final = Struct(">H")
_TAGS_HEAD: Final = TAGS.encode() + KEY_END.encode()
_ENTRY_END: Final = ENTRY_END.encode()
_QUEUE_OFFSET: Final = FIXED.index("queue_offset")
_SYS_FLAG: Final = FIXED.index("sys_flag")
_BODY_SIZE: Final = FIXED.index("body_size")


class MessageColumns:
    """Grows by the records of replies. `fixed` has one tuple for each message, in the order of FIXED.

    A message that is corrupt has None for its body and its reason in `errors`, by its number, if it is `permissive`.
    """

    __slots__ = ("bodies", "errors", "fixed", "permissive", "properties", "size_bytes", "topics")

    def __init__(self, *, permissive: bool = False) -> None:
        self.permissive = permissive
        self.errors: dict[int, str] = {}
        self.fixed: list[tuple[Any, ...]] = []
        self.bodies: list[bytes | None] = []
        self.topics: list[bytes] = []
        self.properties: list[bytes] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.bodies)

    def column(self, name: str) -> list[Any]:
        """One of the fields in FIXED."""
        return list(map(itemgetter(FIXED.index(name)), self.fixed))

    def add(self, data: bytes, start: int, low: int, high: int, tags: frozenset[bytes] = frozenset()) -> None:
        """Take the records that fill `data` from `start` on: those of the offsets from `low` to before `high`.

        With `tags`, only those that have one of them. Raises ProtocolError for broken framing, and, unless it is
        permissive, for a record whose body does not match its CRC or cannot be decompressed.
        """
        size = len(data)
        add_fixed, add_body = self.fixed.append, self.bodies.append
        add_topic, add_properties = self.topics.append, self.properties.append
        try:
            while start < size:
                fixed, body_start = _unpack(data, start), start + 88
                sys_flag = fixed[_SYS_FLAG]
                if sys_flag & _HOSTS_V6:
                    long = _BY_HOSTS[sys_flag & _HOSTS_V6]
                    fixed, body_start = long.unpack_from(data, start), start + long.size
                body_end = body_start + fixed[_BODY_SIZE]
                topic_start, topic_size = body_end + 1, data[body_end]
                if fixed[1] != MAGIC_V1:
                    topic_start, topic_size = _long_topic(data, body_end, fixed[1])
                at = topic_start + topic_size
                end = at + 2 + (data[at] << 8 | data[at + 1])
                if end - start != fixed[0]:
                    raise ProtocolError(f"a message announces {fixed[0]} bytes; its parts take {end - start}")
                if low <= fixed[_QUEUE_OFFSET] < high:
                    properties = data[at + 2 : end]
                    if not tags or _tag(properties) in tags:
                        body = data[body_start:body_end]
                        if (crc32(body) ^ fixed[2]) & 0x7FFFFFFF:
                            self._corrupt(fixed, "the CRC of its body does not match")
                            add_body(None)
                        else:
                            add_body(self._plain(body, fixed) if sys_flag & COMPRESSED else body)
                        add_fixed(fixed)
                        add_topic(data[topic_start:at])
                        add_properties(properties)
                start = end
        except (IndexError, StructError) as error:
            raise ProtocolError(f"a message is cut short: {size - start} bytes are left for it") from error
        if start != size:
            raise ProtocolError(f"the last message goes {start - size} bytes past the reply's end")
        self.size_bytes += size

    def _plain(self, body: bytes, fixed: tuple[Any, ...]) -> bytes | None:
        try:
            return decompress(body, fixed[_SYS_FLAG])
        except ProtocolError as error:
            self._corrupt(fixed, str(error))
            return None

    def _corrupt(self, fixed: tuple[Any, ...], reason: str) -> None:
        if not self.permissive:
            raise ProtocolError(f"the message at offset {fixed[_QUEUE_OFFSET]} is corrupt: {reason}")
        self.errors[len(self.bodies)] = reason


def parse_all(properties: Sequence[bytes]) -> list[dict[str, str]]:
    """What `parse_properties` gives, for many."""
    found = []
    for raw in properties:
        text = raw.decode("utf-8", "replace")
        try:
            # each entry splits into just a name and a value, or this is the slow way's matter
            entries = dict([entry.split(KEY_END) for entry in text.removesuffix(ENTRY_END).split(ENTRY_END)])
        except ValueError:
            found.append(parse_properties(text))
            continue
        found.append(parse_properties(text) if "" in entries or "" in entries.values() else entries)
    return found


class HostTexts(dict[bytes, str]):
    """Stored addresses as `ip:port`; a topic has few, and each is written once."""

    def __missing__(self, stored: bytes) -> str:
        text = self[stored] = format_host(stored)
        return text


class Texts(dict[bytes, str]):
    """Names that come again and again, decoded once."""

    def __missing__(self, stored: bytes) -> str:
        text = self[stored] = stored.decode("utf-8", "replace")
        return text


def _tag(properties: bytes) -> bytes | None:
    if properties.startswith(_TAGS_HEAD):
        at = len(_TAGS_HEAD)
    else:
        found = properties.find(_ENTRY_END + _TAGS_HEAD)
        if found < 0:
            return None
        at = found + 1 + len(_TAGS_HEAD)
    stop = properties.find(_ENTRY_END, at)
    return properties[at : stop if stop >= 0 else len(properties)]


def _long_topic(data: bytes, body_end: int, magic: int) -> tuple[int, int]:
    if magic != MAGIC_V2:
        raise ProtocolError(f"a message starts with the magic 0x{magic:08X}, which is none that RocketMQ writes")
    return body_end + 2, _SHORT.unpack_from(data, body_end)[0]
