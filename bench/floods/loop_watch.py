"""The handler of the daemon that is flooded: it notes how late the event loop is, in a file that is shared.

The daemon may be one of another checkout, so this imports nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import mmap
import time
from pathlib import Path
from struct import Struct
from typing import Any

TICK_SECONDS = 0.005
NOTE = Struct("=ddd")  # when the loop last came by, how late it was at worst, and since when that counts
SINCE = Struct("=d")
SINCE_AT = NOTE.size - SINCE.size


class Watch:
    """Handles messages as it is told: looks at each body, or leaves garbage that only Python's collector frees."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._path = Path(options["file"])
        self._litters = bool(options["litters"])

    async def start(self) -> None:
        """Begin to watch; the watch ends with the process."""
        with self._path.open("r+b") as file:
            self._note = mmap.mmap(file.fileno(), NOTE.size)
        self._task = asyncio.create_task(self._watch())

    async def handle(self, batch: Any) -> None:
        """Look at each message's body."""
        for message in batch:
            len(message.body)
            if self._litters:
                try:
                    int("no number")
                except ValueError as error:
                    kept = error  # noqa: F841 - a cycle: its frame, which has the batch, has it

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
