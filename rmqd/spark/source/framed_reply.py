"""Finds the start of each record of a response before the response is accepted. Incomplete responses are pulled again.

The layout of a record is the same as in `rmqd.wire.messages.record`. As in `rmqd.wire.messages.decode`, its total size
and the lengths of its parts must agree. No object is created for a record: `rmqd.spark.source.source_records` decodes
many at once. Most producers send messages of equal length, so consecutive records of equal layout are checked at once.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Final

import numpy as np

from rmqd.spark.source.buffer_arrays import Ints
from rmqd.wire.messages.properties import BORN_HOST_V6, STORE_HOST_V6
from rmqd.wire.messages.record import MAGIC_V1, MAGIC_V2

# total size, magic, sys flag, and body size if both hosts are IPv4
_unpack: Final = Struct(">II28xi44xI").unpack_from
_body_size_at: Final = Struct(">I").unpack_from
_BODY: Final = 88  # position of the body with two IPv4 hosts
_LONGER: Final = 12  # additional bytes of an IPv6 host
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_total_at: Final = Struct(">I").unpack_from
_magic_at: Final = Struct(">4xI").unpack_from
_FIXED: Final = (*range(8), *range(36, 40), *range(84, 88))  # positions of the bytes that `_unpack` reads
_FEWEST_ALIKE: Final = 4
_MAX_ALIKE: Final = 64


@lru_cache(maxsize=256)
def _deciding(count: int, size: int, topic: range, properties: int) -> Ints:
    """Return the positions of the bytes that determine the layout of `count` records with IPv4 hosts.

    `size` is the size of a record; `topic` and `properties` are the positions of the two lengths in a record.
    """
    record = [*_FIXED, *topic, properties, properties + 1]
    return np.add.outer(np.arange(count) * size, record).ravel()


class FramedReply:
    """The bytes of a response from `start` on, which are `count` records.

    Consecutive records of equal size are a run. `runs` has three numbers for each run: the position of the first
    record, the number of records, and their size. `broken` is why the bytes are not complete records; None if they are.
    Then `runs` contains the records before the fault.
    """

    __slots__ = ("broken", "count", "data", "runs", "start")

    def __init__(self, data: bytes, start: int) -> None:
        self.data = data
        self.start = start
        self.count = 0
        self.runs: list[int] = []
        self.broken = self._frame()

    def _frame(self) -> str | None:
        data, size, at = self.data, len(self.data), self.start
        may_be_alike = True
        try:
            while at < size:
                total, magic, sys_flag, body_size = _unpack(data, at)
                body_start = at + _BODY
                if sys_flag & _HOSTS_V6:
                    body_start += _LONGER * (sys_flag & _HOSTS_V6).bit_count()
                    body_size = _body_size_at(data, body_start - 4)[0]
                topic = body_start + body_size
                topic_end = topic + 1 + data[topic]
                if magic != MAGIC_V1:
                    if magic != MAGIC_V2:
                        return f"a message starts with the unknown magic 0x{magic:08X}"
                    topic_end = topic + 2 + (data[topic] << 8 | data[topic + 1])
                end = topic_end + 2 + (data[topic_end] << 8 | data[topic_end + 1])
                if end - at != total:
                    return f"a message is declared with {total} bytes, but its parts have {end - at}"
                in_run = 1
                if may_be_alike and not sys_flag & _HOSTS_V6:
                    alike = self._alike(at, total, topic - at, topic_end - at)
                    may_be_alike = alike > 0
                    in_run += alike
                self.runs += (at, in_run, total)
                self.count += in_run
                at += in_run * total
        except (IndexError, StructError):
            return f"a message is cut off: only {size - at} bytes are left for it"
        return None if at == size else f"the last message ends {at - size} bytes after the response"

    def _alike(self, at: int, size: int, topic: int, properties: int) -> int:
        """Return how many next records have the layout of the record at `at`; 0 if they are few or one differs."""
        data, end = self.data, at + size
        count = min((len(data) - end) // size, _MAX_ALIKE)
        if count < _FEWEST_ALIKE or _total_at(data, end + (count - 1) * size)[0] != size:
            return 0
        topic_size = range(topic, topic + (1 if _magic_at(data, at)[0] == MAGIC_V1 else 2))
        places = _deciding(1 + count, size, topic_size, properties)
        found = np.frombuffer(data, np.uint8, (1 + count) * size, at).take(places).tobytes()
        return count if found == found[: len(places) // (1 + count)] * (1 + count) else 0
