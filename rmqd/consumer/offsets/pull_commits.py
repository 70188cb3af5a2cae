"""Commits that pulls carry: bit 1 of a pull's system flag, and its `commitOffset`.

A broker stores the offset when the pull arrives, before it answers or holds the pull. It stores any value, even a
lower offset, and even over an operator's reset, which the response then reports. The response does not mention the
commit, and the broker may hold it for 20 s. These are the rules:

- A pull carries a commit only if it cannot undo a change that arrives before or after it: no other commit of the queue
  is in flight or unanswered, no reset waits to be stored, and the offset is above the stored one. The broker must be
  the master, on the connection that returned the stored offset. While other commits need a check of the stored
  offset (`OffsetWatch`), a pull needs this check too, right before it is sent.
- Once the pull is sent, its commit counts as unanswered (`UnheardCommits`). As for any commit, no other commit of the
  queue is sent until this one is known to be stored, or 5 s are over. So a late pull cannot replace a reset, or the
  last commit before the queue's lock is released.
- The commit is known to be stored when the pull is answered. Within the 5 s it is also known when the broker returns
  its offset as the stored offset: no other commit of this member has that offset. Without this rule, a queue could not
  be released while the broker holds its pull.
- The response of a cancelled pull is still processed. After a timeout or a lost connection the commit counts as long
  as any other unanswered commit.
- A suspended member may have lost the queue before it can know. So pulls carry commits only while the steps of
  `OffsetPersistence` are on time (`OffsetStore.carries_until`). After a late step the stored offset is checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.clock import Clock
from rmqd.consumer.offsets.unheard_commits import SETTLE_SECONDS, UnheardCommit, UnheardCommits
from rmqd.consumer.services import CarriedCommit
from rmqd.errors import RemotingClosedError, RemotingTimeoutError, TlsError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull import PULLED
from rmqd.wire.message_queue import MessageQueue

ANSWER_SECONDS: Final = 5.0  # the limit for any other commit, too
RECENT_SECONDS: Final = 1.0  # such a recent pull is probably not held, and the next pull will carry a higher offset
AGAIN_SECONDS: Final = 0.2


@dataclass(slots=True, eq=False)
class PullCommit:
    """A commit that one pull carries. `sent_at` is monotonic."""

    queue: MessageQueue
    offset: int
    epoch: int
    on: RemotingConnection
    sent_at: float
    unheard: UnheardCommit
    is_overdue: bool = False
    """Whether other commits were allowed since. They may have the same offset, so only the response ends this one."""


class OffsetRead(NamedTuple):
    """The stored offset that a broker returned to a request at `asked_at` (monotonic)."""

    asked_at: float
    stored: int | None


class PullCommits:
    """The commits of pulls that are in flight, one for each queue. `on_stored` is called for each stored commit."""

    def __init__(self, clock: Clock, unheard: UnheardCommits, on_stored: Callable[[PullCommit], None]) -> None:
        self._clock = clock
        self._unheard = unheard
        self._on_stored = on_stored
        self._in_flight: dict[MessageQueue, PullCommit] = {}

    def is_recent(self, queue: MessageQueue) -> bool:
        """Return whether a pull with a commit was sent less than `RECENT_SECONDS` ago, and is unanswered."""
        commit = self._in_flight.get(queue)
        return commit is not None and self._clock.monotonic() - commit.sent_at < RECENT_SECONDS

    def send(self, queue: MessageQueue, offset: int, epoch: int, on: RemotingConnection) -> CarriedCommit:
        """Record a commit whose pull is sent immediately."""
        now = self._clock.monotonic()
        unheard = self._unheard.sent(queue, offset, ANSWER_SECONDS)
        commit = self._in_flight[queue] = PullCommit(queue, offset, epoch, on, now, unheard)
        return CarriedCommit(offset, partial(self._ended, commit))

    async def over(
        self, queue: MessageQueue, read: Callable[[MessageQueue], Awaitable[int | None]]
    ) -> OffsetRead | None:
        """Wait until the commit in flight is stored, or its time is over. Raises the RmqdError of `read`.

        `read` requests the stored offset from the broker. Returns its last result; None if `read` was not called.
        """
        while (commit := self._in_flight.get(queue)) is not None:
            found = OffsetRead(self._clock.monotonic(), await read(queue))
            if found.stored == commit.offset and not commit.is_overdue:
                self._end(commit, is_stored=True)
                return found
            if self._clock.monotonic() - commit.sent_at >= ANSWER_SECONDS:
                commit.is_overdue = True
                return found
            await self._clock.sleep(AGAIN_SECONDS)
        return None

    def _ended(self, commit: PullCommit, answer: asyncio.Future[RemotingCommand]) -> None:
        """Called with the pull's response. A cancelled future has no response: another future receives it."""
        if answer.cancelled():
            return
        error = answer.exception()
        if error is None:
            self._end(commit, is_stored=answer.result().code in PULLED)
        elif isinstance(error, RemotingClosedError | TlsError):
            left = commit.sent_at + ANSWER_SECONDS - self._clock.monotonic()  # the pull may still wait at the broker
            self._end(commit, is_stored=False, seconds=max(SETTLE_SECONDS, left))
        elif isinstance(error, RemotingTimeoutError):
            self._end(commit, is_stored=False, seconds=float("inf"))

    def _end(self, commit: PullCommit, *, is_stored: bool, seconds: float = 0.0) -> None:
        if self._in_flight.get(commit.queue) is commit:
            del self._in_flight[commit.queue]
            if is_stored:
                self._on_stored(commit)
            else:
                self._unheard.settle(commit.unheard, seconds)
