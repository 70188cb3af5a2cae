"""Kept connections, one per client, so that the cost of a call does not depend on their number.

An httpx client with many connections checks each of them whenever a call starts or ends. It also assigns one idle
connection to several calls that start together, and all but one then search again: with 64 concurrent calls this is
twelve times the work.
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
"""How long an idle connection is kept, as in httpx: less than most servers keep it."""


class Connections:
    """At most `most` clients, each for one call at a time. `make` creates a client with one connection."""

    def __init__(self, make: Callable[[], httpx.AsyncClient], most: int) -> None:
        self._make = make
        self._slots = asyncio.Semaphore(most)
        self._idle: deque[tuple[float, httpx.AsyncClient]] = deque()
        """Each with the time since which it is idle, the longest idle first."""

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """Yield a client for exclusive use in the block. Waits if all are in use.

        The most recently used client is chosen, so that surplus ones stay idle and are closed.
        """
        async with self._slots:
            client = self._idle.pop()[1] if self._idle else self._make()
            try:
                yield client
            except BaseException:
                # after an interrupted call, the connection may stay in use, and the next call would wait forever
                await client.aclose()
                raise
            self._idle.append((time.monotonic(), client))
            await self._close_old()

    async def close(self) -> None:
        """Close the idle clients. No call is running."""
        while self._idle:
            await self._idle.popleft()[1].aclose()

    async def _close_old(self) -> None:
        while self._idle and time.monotonic() - self._idle[0][0] > IDLE_SECONDS:
            await self._idle.popleft()[1].aclose()
