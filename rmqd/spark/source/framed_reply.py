"""Finds where each record of a reply begins, before the reply is accepted: one that is not whole is pulled again.

The layout of a record is that of `rmqd.wire.messages.record`. As in `rmqd.wire.messages.decode`, its total size and the
lengths of its parts must agree. No object is made for a record: `rmqd.spark.source.records` decodes many at once.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final

from rmqd.wire.messages.record import MAGIC_V1, MAGIC_V2
from rmqd.wire.messages.sys_flag import BORN_HOST_V6, STORE_HOST_V6

# total size, magic, sys flag, and body size where both hosts are IPv4
_unpack: Final = Struct(">II28xi44xI").unpack_from
_body_size_at: Final = Struct(">I").unpack_from
_BODY: Final = 88  # where the body starts, with two IPv4 hosts
_LONGER: Final = 12  # how many bytes longer an IPv6 host is than an IPv4 host
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6


class FramedReply:
    """The bytes of a reply from `start` on; `starts` are the positions of its records.

    `broken` says why the bytes are not whole records; None if they are. `starts` has those before the fault.
    """

    __slots__ = ("broken", "data", "start", "starts")

    def __init__(self, data: bytes, start: int) -> None:
        self.data = data
        self.start = start
        self.starts: list[int] = []
        self.broken = self._frame()

    def _frame(self) -> str | None:
        data, size, at, found = self.data, len(self.data), self.start, self.starts.append
        try:
            while at < size:
                total, magic, sys_flag, body_size = _unpack(data, at)
                body_start = at + _BODY
                if sys_flag & _HOSTS_V6:
                    body_start += _LONGER * (sys_flag & _HOSTS_V6).bit_count()
                    body_size = _body_size_at(data, body_start - 4)[0]
                topic = body_start + body_size
                properties = topic + 1 + data[topic]
                if magic != MAGIC_V1:
                    if magic != MAGIC_V2:
                        return f"a message starts with the magic 0x{magic:08X}, none that RocketMQ writes"
                    properties = topic + 2 + (data[topic] << 8 | data[topic + 1])
                end = properties + 2 + (data[properties] << 8 | data[properties + 1])
                if end - at != total:
                    return f"a message announces {total} bytes; its parts take {end - at}"
                found(at)
                at = end
        except (IndexError, StructError):
            return f"a message is cut short: {size - at} bytes are left for it"
        return None if at == size else f"the last message goes {at - size} bytes past the reply's end"
