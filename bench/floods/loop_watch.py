"""The handler of the flooded daemon. It records the delay of the event loop in a shared file.

The daemon may be from another checkout, so this module imports only the standard library.
"""

from __future__ import annotations

import asyncio
import mmap
import time
from pathlib import Path
from struct import Struct
from typing import Any

TICK_SECONDS = 0.005
NOTE = Struct("=ddd")  # the loop's last run, its longest delay, and the start of the measurement
SINCE = Struct("=d")
SINCE_AT = NOTE.size - SINCE.size


class Watch:
    """Reads each message's body, and if `litters` is set, leaves garbage that only Python's collector frees."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._path = Path(options["file"])
        self._litters = bool(options["litters"])

    async def start(self) -> None:
        """Start a watch that lasts until the process ends."""
        with self._path.open("r+b") as file:
            self._note = mmap.mmap(file.fileno(), NOTE.size)
        self._task = asyncio.create_task(self._watch())

    async def handle(self, batch: Any) -> None:
        """Read each message's body."""
        for message in batch:
            len(message.body)
            if self._litters:
                try:
                    int("no number")
                except ValueError as error:
                    kept = error  # noqa: F841 - a cycle: exception, its frame with the batch, and this name

    async def _watch(self) -> None:
        worst = since = 0.0
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            (asked,) = SINCE.unpack_from(self._note, SINCE_AT)
            worst = now - before - TICK_SECONDS if asked != since else max(worst, now - before - TICK_SECONDS)
            since = asked
            NOTE.pack_into(self._note, 0, now, worst, since)
