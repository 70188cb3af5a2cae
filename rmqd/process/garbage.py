"""Collects garbage when the process's memory grows, not only when the number of objects grows.

A handler's `except ValueError as error: kept = error` creates a reference cycle of a few objects. The cycle keeps the
message alive, and with it the whole pull response: a megabyte and more. Python's collector counts objects, and the
daemon makes it run only every 50,000 objects (`settle_garbage_collection`), because messages create no cycles. Until
then such garbage could take gigabytes. So this module watches the process's memory, and collects when it has grown by
half, and by at least 64 MiB, since the last collection. While memory does not grow, this costs nothing.

Freed memory must also be returned to the system. Otherwise malloc keeps it, the next check cannot distinguish garbage
from free memory, and memory grows by half again and again.
"""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Final

TICK_SECONDS: Final = 0.1
QUIET_TICK_SECONDS: Final = 0.25  # while memory does not grow, to wake an idle daemon rarely
NOTABLE_GROWTH_BYTES: Final = 1024 * 1024
LEAST_GROWTH_BYTES: Final = 64 * 1024 * 1024
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

CAN_BE_WATCHED: Final = _STATM.exists()
"""Whether the system shows the process's memory in /proc, as Linux does."""


async def collect_as_memory_grows() -> None:
    """Watch the memory until cancelled. If the system does not show it, only wait to be cancelled."""
    if not CAN_BE_WATCHED:
        await asyncio.get_running_loop().create_future()
    statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
    try:
        floor = now = _resident_bytes(statm)
        is_growing = False
        while True:
            await asyncio.sleep(TICK_SECONDS if is_growing else QUIET_TICK_SECONDS)
            before, now = now, _resident_bytes(statm)
            is_growing = now - before > NOTABLE_GROWTH_BYTES
            if now - floor > max(LEAST_GROWTH_BYTES, floor // 2):
                gc.collect()
                _trim()
                floor = now = _resident_bytes(statm)
            floor = min(floor, now)
    finally:
        os.close(statm)


def _resident_bytes(statm: int) -> int:
    return int(os.pread(statm, 64, 0).split()[1]) * _PAGE_BYTES


def _trim() -> None:
    """Call glibc's malloc_trim. Other C libraries do not have it, and return more memory on their own."""
    import ctypes  # takes 0.7 MiB, which most processes never need

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
