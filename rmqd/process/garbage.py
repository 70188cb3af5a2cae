"""Garbage that only Python's collector frees, found by the memory that it takes.

A handler's `except ValueError as error: kept = error` makes a cycle of a few objects, which keeps the message, and so
the whole reply that brought it: a megabyte and more. Python's collector goes by the number of objects, and the daemon
has it look at every 50,000 (`settle_garbage_collection`), as messages make no cycles; until then such garbage would
take gigabytes. So the process's memory is watched, and a collection is made when it has grown by half, and by 64 MiB
at least, since the last one. Where memory does not grow, that costs nothing.

What was freed must go back to the system, too: malloc keeps it, so that the next look would not tell garbage from what
is free, and would let the memory grow by half again and again.
"""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Final

TICK_SECONDS: Final = 0.1
QUIET_TICK_SECONDS: Final = 0.25  # while the memory does not grow: an idle daemon is woken as seldom as can be
NOTABLE_GROWTH_BYTES: Final = 1024 * 1024
LEAST_GROWTH_BYTES: Final = 64 * 1024 * 1024
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

CAN_BE_WATCHED: Final = _STATM.exists()
"""Whether the system tells how much memory the process takes: Linux does."""


async def collect_as_memory_grows() -> None:
    """Watch the memory until cancelled. Where the system does not tell the memory, only wait to be cancelled."""
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
    """Call glibc's malloc_trim; other C libraries have none, and give more back by themselves."""
    import ctypes  # takes 0.7 MiB, which most processes never need

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
