"""Commits whose fate is unknown: sent and not answered, so that a broker may take them up after a later one."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

from rmqd.clock import Clock
from rmqd.errors import RemotingClosedError, RemotingTimeoutError, RmqdError, TlsError
from rmqd.wire.message_queue import MessageQueue

SETTLE_SECONDS: Final = 2.0  # in which a broker has taken up what it had read of a connection that ended
FORGOTTEN_SECONDS: Final = 30.0  # a broker that stands still for longer than that loses its clients anyway


@dataclass(slots=True, eq=False)
class _Unheard:
    offset: int
    until: float  # monotonic: later it has no effect


class UnheardCommits:
    """What may still come over each queue's stored offset. What is written after `until` is the last word again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._commits: dict[MessageQueue, list[_Unheard]] = {}
        self._heard = asyncio.Event()  # of any of them

    def failed(self, queue: MessageQueue, offset: int, error: RmqdError) -> None:
        """A commit ended by an error. Keep it in mind, unless the broker refused it or it was never sent."""
        now = self._clock.monotonic()
        if isinstance(error, RemotingTimeoutError) and error.on_late is not None:
            unheard = _Unheard(offset, now + FORGOTTEN_SECONDS)
            error.on_late(lambda is_answered: self._settle(unheard, 0.0 if is_answered else SETTLE_SECONDS))
        elif isinstance(error, RemotingClosedError | TlsError):  # TLS is one explanation of why it ended
            unheard = _Unheard(offset, now + SETTLE_SECONDS)
        else:
            return
        self._commits.setdefault(queue, []).append(unheard)

    def stored(self, queue: MessageQueue, asked_at: float) -> None:
        """The broker has our newest offset, as it said to a request of that time: what had ended by then is over."""
        left = [unheard for unheard in self._commits.pop(queue, ()) if unheard.until > asked_at]
        if left:
            self._commits[queue] = left

    def offsets(self, queue: MessageQueue) -> frozenset[int]:
        """What a broker may have stored of it, or may still store."""
        return frozenset(unheard.offset for unheard in self._commits.get(queue, ()))

    async def over(self, queue: MessageQueue, offset: int, until: float) -> bool:
        """Wait, but not beyond `until`, for the end of what could replace `offset`; whether any of it has ended.

        Until `stored` is called, it may have replaced it.
        """
        while others := [one.until for one in self._commits.get(queue, ()) if one.offset != offset]:
            now = self._clock.monotonic()
            if now >= min(max(others), until):
                return now >= max(others)
            self._heard.clear()
            with contextlib.suppress(TimeoutError):
                async with self._clock.timeout(min(max(others), until) - now):
                    await self._heard.wait()
        return False

    def _settle(self, unheard: _Unheard, seconds: float) -> None:
        unheard.until = min(unheard.until, self._clock.monotonic() + seconds)
        self._heard.set()
