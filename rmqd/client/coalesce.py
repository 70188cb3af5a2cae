"""One call at a time for each key, shared by all callers that asked before it began.

Many parts of a client ask for the same thing at the same moment: a hundred queues lose their broker, and each wants a
fresh route. One request should serve all of them. But a caller must not get an outcome of a call that began before it
asked: it asks because something has just changed, and the older answer may not show that.

So each caller takes a number, and then the key's lock. Who holds the lock looks whether a call that began after its own
number has ended meanwhile. If so, it takes that outcome. Otherwise it takes a second number, which marks the begin of
the call, and calls. With many callers that makes two calls: the one under way when they came, and one for all of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Key(Generic[T]):
    __slots__ = ("lock", "outcome", "started", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        self.started = -1
        self.outcome: T | None = None


class Coalesced(Generic[K, T]):
    """Makes `work(key)` cheap to ask for from many places at once.

    A caller gets the outcome of a call that began after it asked, so what it learns is never older than its question.
    There are no tasks: one of the callers does the work, and if it is cancelled the next one takes over. If `work`
    raises, only the caller that ran it gets the error, and the next one tries again. So `work` should return, not
    raise, errors that all callers are to share.
    """

    def __init__(self, work: Callable[[K], Awaitable[T]]) -> None:
        self._work = work
        self._keys: dict[K, _Key[T]] = {}
        self._ticks = itertools.count()

    def is_running(self, key: K) -> bool:
        """Whether a call for the key is waited for or under way."""
        return key in self._keys

    async def settled(self, key: K) -> None:
        """Wait for the calls that were asked for before this one; starts none."""
        entry = self._keys.get(key)
        if entry is not None:
            async with entry.lock:
                pass

    async def __call__(self, key: K) -> T:
        """The outcome of `work(key)`, run now or shared."""
        asked = next(self._ticks)
        entry = self._keys.get(key)
        if entry is None:
            entry = self._keys[key] = _Key()
        entry.users += 1
        try:
            async with entry.lock:
                if entry.started > asked:
                    return entry.outcome  # type: ignore[return-value]  # set by the call that set `started`
                started = next(self._ticks)
                outcome = await self._work(key)
                entry.started, entry.outcome = started, outcome
                return outcome
        finally:
            entry.users -= 1
            if entry.users == 0:
                del self._keys[key]
