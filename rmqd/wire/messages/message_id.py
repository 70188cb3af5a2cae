"""The two ids of a message: its storage position (offset id), and its producer's id (unique key)."""

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
    """The contents of an offset id: the storing broker's address and the commit log offset there."""

    host: str
    port: int
    commit_log_offset: int

    @property
    def address(self) -> str:
        """The broker's address as "host:port", an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def offset_message_id(store_host: bytes, commit_log_offset: int) -> str:
    """Return the id of a stored message. `store_host` is the address as stored: 4 or 16 bytes, and 4 bytes of port."""
    return (store_host + _OFFSET.pack(commit_log_offset)).hex().upper()


def parse_offset_message_id(message_id: str) -> OffsetMessageId:
    """Read an offset id. Raises ProtocolError for anything else."""
    if not _OFFSET_ID.fullmatch(message_id):
        raise ProtocolError(f"{message_id[:80]!r} is not a valid offset message id; expected 32 or 56 hex digits")
    data = bytes.fromhex(message_id)
    (port,), (offset,) = _PORT.unpack_from(data, len(data) - 12), _OFFSET.unpack_from(data, len(data) - 8)
    return OffsetMessageId(host_text(data[:-12]), port, offset)


def host_text(address: bytes) -> str:
    """Return an address of 4 or 16 bytes as text, IPv6 in full without brackets."""
    if len(address) == 4:
        return ".".join(map(str, address))
    return ":".join(address[i : i + 2].hex() for i in range(0, len(address), 2))


@lru_cache(maxsize=1024)  # a broker writes its clients' addresses into every message
def parse_host(address: str) -> bytes:
    """Encode an address "ip:port", IPv6 in brackets, in stored form. Raises InvalidMessageError if it is not valid."""
    import ipaddress  # slow to import, and consumers do not need it

    host, _, port = address.rpartition(":")
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).packed + _PORT.pack(int(port))
    except (ValueError, StructError) as error:
        raise InvalidMessageError(f"{address!r} is not a valid ip:port: {error}") from error


def format_host(stored: bytes) -> str:
    """Return a stored address as "ip:port", IPv6 in brackets and in full."""
    host = host_text(stored[:-4])
    (port,) = _PORT.unpack_from(stored, len(stored) - 4)
    return f"[{host}]:{port}" if len(stored) > 8 else f"{host}:{port}"


class UniqueKeys:
    """Creates unique keys like Java's producer: machine, process, time since the start of the month, counter.

    `address` is the machine's IPv4 or IPv6 address. `seed` is any number that differs between producers of one process.
    """

    __slots__ = ("_counter", "_fixed", "_month_start", "_next_month")

    def __init__(self, address: bytes, process_id: int, seed: int) -> None:
        fixed = address + (process_id & 0xFFFF).to_bytes(2) + (seed & 0xFFFFFFFF).to_bytes(4)
        self._fixed = fixed.hex().upper()
        self._counter = 0
        self._month_start = self._next_month = 0.0

    def next(self, now: float) -> str:
        """Return the next key. `now` is the time in seconds since 1970. Unique for 65,536 keys per millisecond."""
        if not self._month_start <= now < self._next_month:
            self._month_start, self._next_month = _month(now)
        since_month_start = int((now - self._month_start) * 1000) & 0xFFFFFFFF
        self._counter = (self._counter + 1) & _LARGEST_COUNTER
        return self._fixed + _UNIQUE_TAIL.pack(since_month_start, self._counter).hex().upper()


def _month(now: float) -> tuple[float, float]:
    """Return the first second of the month of `now`, and that of the next month."""
    start = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return start.timestamp(), after.timestamp()
