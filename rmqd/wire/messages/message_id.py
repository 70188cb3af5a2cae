"""The two ids of a message: the offset id, which is its storage position, and the unique key from its producer."""

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
    """A parsed offset id: the address "ip:port" of the storing broker, and the offset in its commit log."""

    address: str
    commit_log_offset: int


def offset_message_id(store_host: bytes, commit_log_offset: int) -> str:
    """Return the offset id of a message. `store_host` is in stored form: 4 or 16 bytes of address, 4 bytes of port."""
    return (store_host + _OFFSET.pack(commit_log_offset)).hex().upper()


def parse_offset_message_id(message_id: str) -> OffsetMessageId:
    """Parse an offset id. Raises ProtocolError unless the text has 32 or 56 hex digits."""
    if not _OFFSET_ID.fullmatch(message_id):
        raise ProtocolError(f"{message_id[:80]!r} is not a valid offset message id; expected 32 or 56 hex digits")
    data = bytes.fromhex(message_id)
    return OffsetMessageId(format_host(data[:-8]), _OFFSET.unpack(data[-8:])[0])


@lru_cache(maxsize=1024)  # cached, because the embedded broker writes the producer's address into every message
def parse_host(address: str) -> bytes:
    """Convert "ip:port" (IPv6 in brackets) to the bytes in records. Raises InvalidMessageError if it is invalid."""
    import ipaddress  # slow to import, and consumers do not need it

    host, _, port = address.rpartition(":")
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).packed + _PORT.pack(int(port))
    except (ValueError, StructError) as error:
        raise InvalidMessageError(f"{address!r} is not a valid ip:port: {error}") from error


def format_host(stored: bytes) -> str:
    """Return an address from a record as "ip:port". An IPv6 address is in brackets and not abbreviated."""
    (port,) = _PORT.unpack(stored[-4:])
    if len(stored) == 8:
        return f"{'.'.join(map(str, stored[:4]))}:{port}"
    return host_port(stored[:16].hex(":", 2), port)


def host_port(host: str, port: object) -> str:
    """Return "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class UniqueKeys:
    """Generator of unique keys like Java's keys: machine, process, time since the month began, counter.

    `address` is the machine's IPv4 or IPv6 address in bytes. `seed` must differ between the producers of a process.
    """

    __slots__ = ("_counter", "_fixed", "_month_start", "_next_month")

    def __init__(self, address: bytes, process_id: int, seed: int) -> None:
        fixed = address + (process_id & 0xFFFF).to_bytes(2) + (seed & 0xFFFFFFFF).to_bytes(4)
        self._fixed = fixed.hex().upper()
        self._counter = 0
        self._month_start = self._next_month = 0.0

    def next(self, now: float) -> str:
        """Return the next key. `now` is in seconds since 1970. Up to 65,536 keys in a millisecond are unique."""
        if not self._month_start <= now < self._next_month:
            self._month_start, self._next_month = _month(now)
        since_month_start = int((now - self._month_start) * 1000) & 0xFFFFFFFF
        self._counter = (self._counter + 1) & _LARGEST_COUNTER
        return self._fixed + _UNIQUE_TAIL.pack(since_month_start, self._counter).hex().upper()


def _month(now: float) -> tuple[float, float]:
    """Return when the month of `now` and the next month begin (UTC). All times are in seconds since 1970."""
    start = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return start.timestamp(), after.timestamp()
