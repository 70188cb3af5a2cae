"""Commits with an unknown result, because they were sent and not answered.

The broker may have stored such an offset, or may store it later, even after a later commit: a request that was read
from a connection is executed even if the connection has ended. So a lower offset may replace a higher, confirmed one.
While that is possible, the offset store repeats its commit, and a hand-over waits.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from rmqd.clock import Clock, wait_within
from rmqd.errors import RemotingClosedError, RemotingTimeoutError, RmqdError, TlsError
from rmqd.wire.message_queue import MessageQueue

SETTLE_SECONDS: Final = 2.0  # time until a broker has executed all requests of a closed connection
FORGOTTEN_SECONDS: Final = 30.0  # a broker that hangs longer loses its clients anyway


@dataclass(slots=True, eq=False)
class UnheardCommit:
    """An offset that the broker may store until a deadline."""

    offset: int
    until: float  # monotonic; no effect later


class UnheardCommits:
    """The offsets that may still replace each queue's stored one, and until when. Later commits are not affected."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._commits: dict[MessageQueue, list[UnheardCommit]] = {}
        self._heard = asyncio.Event()  # set when any of them ends

    def sent(self, queue: MessageQueue, offset: int, answer_seconds: float) -> UnheardCommit:
        """Record a commit in a pull, whose response may take longer than `answer_seconds`."""
        unheard = UnheardCommit(offset, self._clock.monotonic() + answer_seconds + FORGOTTEN_SECONDS)
        self._commits.setdefault(queue, []).append(unheard)
        return unheard

    def answered(self, queue: MessageQueue, commit: UnheardCommit) -> None:
        """Record that such a commit is stored, so the broker does not store it again."""
        self.settle(commit, float("-inf"))
        self.stored(queue, float("-inf"))

    def failed(self, queue: MessageQueue, offset: int, error: RmqdError) -> None:
        """Called when a commit failed. Record it, unless the broker refused it or it was never sent."""
        now = self._clock.monotonic()
        if isinstance(error, RemotingTimeoutError) and error.on_late is not None:
            unheard = UnheardCommit(offset, now + FORGOTTEN_SECONDS)
            error.on_late(lambda is_answered: self.settle(unheard, 0.0 if is_answered else SETTLE_SECONDS))
        elif isinstance(error, RemotingClosedError | TlsError):  # TLS may be the reason for the closed connection
            unheard = UnheardCommit(offset, now + SETTLE_SECONDS)
        else:
            return
        self._commits.setdefault(queue, []).append(unheard)

    def stored(self, queue: MessageQueue, asked_at: float) -> None:
        """Record that the broker had our newest offset when it was asked at `asked_at`.

        Commits that had expired by then cannot replace it any more, and are forgotten.
        """
        left = [unheard for unheard in self._commits.pop(queue, ()) if unheard.until > asked_at]
        if left:
            self._commits[queue] = left

    def offsets(self, queue: MessageQueue) -> frozenset[int]:
        """Return the unanswered offsets that the broker may have stored for the queue, or may still store."""
        return frozenset(unheard.offset for unheard in self._commits.get(queue, ()))

    async def over(self, queue: MessageQueue, offset: int, until: float) -> bool:
        """Wait, at most `until` (monotonic), for the end of the commits that could replace `offset`.

        Returns whether any of them has ended. It may have replaced the offset, until `stored` is called.
        """
        while others := [one.until for one in self._commits.get(queue, ()) if one.offset != offset]:
            now = self._clock.monotonic()
            if now >= min(max(others), until):
                return now >= max(others)
            self._heard.clear()
            await wait_within(self._clock, min(max(others), until) - now, self._heard.wait())
        return False

    def settle(self, unheard: UnheardCommit, seconds: float) -> None:
        """Record that a commit has no effect after `seconds`."""
        unheard.until = min(unheard.until, self._clock.monotonic() + seconds)
        self._heard.set()
