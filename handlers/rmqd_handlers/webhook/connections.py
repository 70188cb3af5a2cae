"""Kept connections, one a client, so that a call costs the same however many there are.

A client of httpx that has many looks at each of them for every call that begins or ends, and gives one idle connection
to several calls that begin together, of which all but one then look again: at 64 under way twelve times the work.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import httpx

IDLE_SECONDS: Final = 5.0
"""How long a connection is kept without a call, as httpx has it: less than most servers keep one."""


class Connections:
    """At most `most` clients, each for one call at a time; `make` makes one that has one connection."""

    def __init__(self, make: Callable[[], httpx.AsyncClient], most: int) -> None:
        self._make = make
        self._slots = asyncio.Semaphore(most)
        self._idle: deque[tuple[float, httpx.AsyncClient]] = deque()
        """With the time since which it is idle; the longest first."""

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client that nobody else has until the end of the block; waits for one where all are taken.

        The one that was used last, so that those that are not needed grow old.
        """
        async with self._slots:
            client = self._idle.pop()[1] if self._idle else self._make()
            try:
                yield client
            except BaseException:
                # a call that was cut short may leave its connection taken, for which the next would wait for good
                await client.aclose()
                raise
            self._idle.append((time.monotonic(), client))
            await self._close_old()

    async def close(self) -> None:
        """Close what is idle; nothing is under way."""
        while self._idle:
            await self._idle.popleft()[1].aclose()

    async def _close_old(self) -> None:
        while self._idle and time.monotonic() - self._idle[0][0] > IDLE_SECONDS:
            await self._idle.popleft()[1].aclose()
