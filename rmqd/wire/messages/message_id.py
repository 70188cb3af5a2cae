"""The two ids of a message: where it is stored (offset id), and what its producer called it (unique key)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from rmqd.errors import InvalidMessageError, ProtocolError

_OFFSET: Final = Struct(">q")
_PORT: Final = Struct(">i")
_UNIQUE_TAIL: Final = Struct(">IH")
_OFFSET_ID: Final = re.compile("[0-9A-Fa-f]{32}([0-9A-Fa-f]{24})?")
_LARGEST_COUNTER: Final = 0xFFFF


class OffsetMessageId(NamedTuple):
    """What an offset id says: the storing broker's address and the commit log offset there."""

    host: str
    port: int
    commit_log_offset: int

    @property
    def address(self) -> str:
        """The broker as "host:port", an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def offset_message_id(store_host: bytes, commit_log_offset: int) -> str:
    """The id of a stored message; `store_host` is its address as stored, 4 or 16 bytes and 4 of the port."""
    return (store_host + _OFFSET.pack(commit_log_offset)).hex().upper()


def parse_offset_message_id(message_id: str) -> OffsetMessageId:
    """Read an offset id. Raises ProtocolError for anything else."""
    if not _OFFSET_ID.fullmatch(message_id):
        raise ProtocolError(f"{message_id[:80]!r} is no offset message id, which has 32 or 56 hex digits")
    data = bytes.fromhex(message_id)
    (port,), (offset,) = _PORT.unpack_from(data, len(data) - 12), _OFFSET.unpack_from(data, len(data) - 8)
    return OffsetMessageId(host_text(data[:-12]), port, offset)


def host_text(address: bytes) -> str:
    """An address of 4 or 16 bytes as people write it, an IPv6 one in full without brackets."""
    if len(address) == 4:
        return ".".join(map(str, address))
    return ":".join(address[i : i + 2].hex() for i in range(0, len(address), 2))


@lru_cache(maxsize=1024)  # a broker writes its clients' addresses into every message
def parse_host(address: str) -> bytes:
    """An address "ip:port", IPv6 in brackets, as it is stored. Raises InvalidMessageError where it is none."""
    import ipaddress  # takes a while to load, and consumers do without

    host, _, port = address.rpartition(":")
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).packed + _PORT.pack(int(port))
    except (ValueError, StructError) as error:
        raise InvalidMessageError(f"{address!r} is no ip:port: {error}") from error


def format_host(stored: bytes) -> str:
    """An address as it is stored as "ip:port", IPv6 in brackets and in full."""
    host = host_text(stored[:-4])
    (port,) = _PORT.unpack_from(stored, len(stored) - 4)
    return f"[{host}]:{port}" if len(stored) > 8 else f"{host}:{port}"


class UniqueKeys:
    """Makes unique keys as Java's producer does: machine, process, time since the month's start, counter.

    `address` is the machine's IPv4 or IPv6 address, `seed` any number that differs between producers of one process.
    """

    __slots__ = ("_counter", "_fixed", "_month_start", "_next_month")

    def __init__(self, address: bytes, process_id: int, seed: int) -> None:
        fixed = address + (process_id & 0xFFFF).to_bytes(2) + (seed & 0xFFFFFFFF).to_bytes(4)
        self._fixed = fixed.hex().upper()
        self._counter = 0
        self._month_start = self._next_month = 0.0

    def next(self, now: float) -> str:
        """The next key; `now` is the time in seconds since 1970. Unique for 65,536 keys a millisecond."""
        if not self._month_start <= now < self._next_month:
            self._month_start, self._next_month = _month(now)
        since_month_start = int((now - self._month_start) * 1000) & 0xFFFFFFFF
        self._counter = (self._counter + 1) & _LARGEST_COUNTER
        return self._fixed + _UNIQUE_TAIL.pack(since_month_start, self._counter).hex().upper()


def _month(now: float) -> tuple[float, float]:
    """First second of the month of `now` and of the one after it."""
    start = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return start.timestamp(), after.timestamp()
