"""Commits with an unknown result (sent and not answered), commits in pulls, and first commits.

*Unanswered commits.* The broker may have stored the offset of an unanswered commit, or may store it later, even after a
later commit: it executes each request that it has read, even if the connection has ended. So a lower offset may replace
a higher, confirmed offset. While that is possible, the offset store repeats its commit, and a hand-over waits.

*Commits in pulls.* A pull can carry an offset to commit: bit 1 of the pull's system flag, and its `commitOffset`.

A broker stores the offset when the pull arrives, before it answers or holds the pull. It stores any value, even a
lower offset, and even over an operator's reset, which the response then reports. The response does not mention the
commit, and the broker may hold the pull for 20 s. These are the rules:

- A pull carries a commit only if it cannot undo a change that arrives before or after it: no other commit of the queue
  is in flight or unanswered, no reset waits to be stored, and the offset is above the stored one. The broker must be
  the master, on the connection that returned the stored offset. While other commits need a check of the stored
  offset (`OffsetWatch`), a pull needs this check too, right before it is sent.
- Once the pull is sent, its commit counts as unanswered (`UnansweredCommits`). As for any commit, no other commit of
  the queue is sent until this one is known to be stored, or 5 s are over. So a late pull cannot replace a reset, or the
  last commit before the queue's lock is released.
- The commit is known to be stored when the pull is answered. Within the 5 s it is also known when the broker returns
  its offset as the stored offset: no other commit of this member has that offset. Without this rule, a queue could not
  be released while the broker holds its pull.
- The response of a cancelled pull is still processed. After a timeout or a lost connection the commit counts as
  unanswered for as long as any other commit.
- A member that was suspended may have lost the queue without knowing it. So pulls carry commits only while the steps of
  `OffsetPersistence` are on time (`GroupOffsetStore.carries_until`). After a late step the stored offset is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import structlog

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.services import CarriedCommit
from rmqd.errors import RemotingClosedError, RemotingTimeoutError, RmqdError, TlsError
from rmqd.runtime.clock import Clock, wait_within
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull_headers import PULL_RESPONSE_CODES
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)


class Commit(NamedTuple):
    """An offset to commit, and the queue's epoch when the commit was decided: see `RemoteBrokerOffsetStore`."""

    queue: MessageQueue
    offset: int
    epoch: int


class ConfirmedOffset(NamedTuple):
    """When a broker last confirmed a queue's stored offset (monotonic), and the connection of its response."""

    known_at: float
    on: RemotingConnection | None


def log_failed_commits(
    commits: Iterable[tuple[Commit, RmqdError | None]], broker_of: Callable[[MessageQueue], str]
) -> None:
    """Log one line for each broker with failed commits. A commit without an error has succeeded."""
    brokers: dict[str, list[tuple[Commit, RmqdError]]] = {}
    for commit, error in commits:
        if error is not None and not error.is_reported:
            brokers.setdefault(broker_of(commit.queue), []).append((commit, error))
    for broker, failures in brokers.items():
        first, error = failures[0]
        facts = {"broker": broker, "queue": str(first.queue), "queues": len(failures)}
        log.warning("offset.commit_failed", **facts, offset=first.offset, error=str(error))


CLOSED_CONNECTION_SECONDS: Final = 2.0  # time until a broker has executed all requests of a closed connection
HANGING_BROKER_SECONDS: Final = 30.0  # stop waiting for a hanging broker: after this time it loses its clients anyway


@dataclass(slots=True, eq=False)
class UnansweredCommit:
    """An offset that the broker may store until a deadline."""

    offset: int
    until: float  # after this time (monotonic) the broker can no longer store the offset


class UnansweredCommits:
    """Commits without a response. Each may still replace its queue's stored offset, until its deadline."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._commits: dict[MessageQueue, list[UnansweredCommit]] = {}
        self._any_ended = asyncio.Event()  # set when an unanswered commit gets an earlier deadline

    def record_sent(self, queue: MessageQueue, offset: int, answer_seconds: float) -> UnansweredCommit:
        """Record a commit in a pull. A broker that does not hang stores the offset within `answer_seconds`."""
        unanswered = UnansweredCommit(offset, self._clock.monotonic() + answer_seconds + HANGING_BROKER_SECONDS)
        self._commits.setdefault(queue, []).append(unanswered)
        return unanswered

    def record_failed(self, queue: MessageQueue, offset: int, error: RmqdError) -> None:
        """Called when a commit failed. Record it, unless the broker refused it or it was never sent."""
        now = self._clock.monotonic()
        if isinstance(error, RemotingTimeoutError) and error.on_late is not None:
            unanswered = UnansweredCommit(offset, now + HANGING_BROKER_SECONDS)
            error.on_late(
                lambda is_answered: self.shorten_deadline(unanswered, 0.0 if is_answered else CLOSED_CONNECTION_SECONDS)
            )
        elif isinstance(error, RemotingClosedError | TlsError):  # TLS may be the reason for the closed connection
            unanswered = UnansweredCommit(offset, now + CLOSED_CONNECTION_SECONDS)
        else:
            return
        self._commits.setdefault(queue, []).append(unanswered)

    def record_stored(self, queue: MessageQueue, asked_at: float) -> None:
        """Record that the broker had our newest offset in its response to a request at `asked_at`.

        Commits whose deadline was before `asked_at` cannot replace that offset any more, and are forgotten.
        """
        left = [unanswered for unanswered in self._commits.pop(queue, ()) if unanswered.until > asked_at]
        if left:
            self._commits[queue] = left

    def offsets(self, queue: MessageQueue) -> frozenset[int]:
        """Return the unanswered offsets that the broker may have stored for the queue, or may still store."""
        return frozenset(unanswered.offset for unanswered in self._commits.get(queue, ()))

    def has(self, queue: MessageQueue) -> bool:
        return queue in self._commits

    async def wait_for_end(self, queue: MessageQueue, offset: int, until: float) -> bool:
        """Wait for the end of the unanswered commits that could replace `offset`, at most until `until` (monotonic).

        Returns True if such commits existed and all have ended: they may have replaced `offset`. Otherwise False.
        """
        while others := [one.until for one in self._commits.get(queue, ()) if one.offset != offset]:
            now = self._clock.monotonic()
            if now >= min(max(others), until):
                return now >= max(others)
            self._any_ended.clear()
            await wait_within(self._clock, min(max(others), until) - now, self._any_ended.wait())
        return False

    def shorten_deadline(self, unanswered: UnansweredCommit, seconds: float) -> None:
        """Record that the broker can store this commit for at most `seconds` from now."""
        unanswered.until = min(unanswered.until, self._clock.monotonic() + seconds)
        self._any_ended.set()


COMMIT_ANSWER_SECONDS: Final = 5.0  # how long a pull's commit delays the queue's other commits, and their timeout
# a pull that was sent less than this time ago is probably answered soon, and the next pull carries a higher offset
RECENT_COMMIT_SECONDS: Final = 1.0
RECHECK_INTERVAL_SECONDS: Final = 0.2


@dataclass(slots=True, eq=False)
class PullCommit:
    """A commit that one pull carries. `sent_at` is monotonic."""

    queue: MessageQueue
    offset: int
    epoch: int
    on: RemotingConnection
    sent_at: float
    unanswered: UnansweredCommit
    is_overdue: bool = False
    """Whether COMMIT_ANSWER_SECONDS have passed. Then only the pull's response proves that the commit is stored."""


class OffsetRead(NamedTuple):
    """The stored offset that a broker returned to a request at `asked_at` (monotonic)."""

    asked_at: float
    stored: int | None


class PullCommits:
    """The commits that pulls in flight carry, one for each queue. `on_stored` is called for each stored commit."""

    def __init__(self, clock: Clock, unanswered: UnansweredCommits, on_stored: Callable[[PullCommit], None]) -> None:
        self._clock = clock
        self._unanswered = unanswered
        self._on_stored = on_stored
        self._in_flight: dict[MessageQueue, PullCommit] = {}

    def is_recent(self, queue: MessageQueue) -> bool:
        """Return whether a pull with a commit was sent less than `RECENT_COMMIT_SECONDS` ago, and is unanswered."""
        commit = self._in_flight.get(queue)
        return commit is not None and self._clock.monotonic() - commit.sent_at < RECENT_COMMIT_SECONDS

    def record_sending(self, queue: MessageQueue, offset: int, epoch: int, on: RemotingConnection) -> CarriedCommit:
        """Record a commit. The caller must send it in a pull immediately."""
        now = self._clock.monotonic()
        unanswered = self._unanswered.record_sent(queue, offset, COMMIT_ANSWER_SECONDS)
        commit = self._in_flight[queue] = PullCommit(queue, offset, epoch, on, now, unanswered)
        return CarriedCommit(offset, partial(self._ended, commit))

    async def wait_for_end(
        self, queue: MessageQueue, read: Callable[[MessageQueue], Awaitable[int | None]]
    ) -> OffsetRead | None:
        """Wait until the queue's commit in a pull is stored, or is COMMIT_ANSWER_SECONDS old.

        `read` requests the stored offset from the broker, and may raise RmqdError. Returns its last result; None if no
        pull with a commit was in flight.
        """
        while (commit := self._in_flight.get(queue)) is not None:
            found = OffsetRead(self._clock.monotonic(), await read(queue))
            if found.stored == commit.offset and not commit.is_overdue:
                self._end(commit, is_stored=True)
                return found
            if self._clock.monotonic() - commit.sent_at >= COMMIT_ANSWER_SECONDS:
                commit.is_overdue = True
                return found
            await self._clock.sleep(RECHECK_INTERVAL_SECONDS)
        return None

    def _ended(self, commit: PullCommit, answer: asyncio.Future[RemotingCommand]) -> None:
        """Called when the pull's future is done. After a cancellation, another future receives the response."""
        if answer.cancelled():
            return
        error = answer.exception()
        if error is None:
            self._end(commit, is_stored=answer.result().code in PULL_RESPONSE_CODES)
        elif isinstance(error, RemotingClosedError | TlsError):
            # the broker may have received the pull and not executed it yet
            left = commit.sent_at + COMMIT_ANSWER_SECONDS - self._clock.monotonic()
            self._end(commit, is_stored=False, seconds=max(CLOSED_CONNECTION_SECONDS, left))
        elif isinstance(error, RemotingTimeoutError):
            self._end(commit, is_stored=False, seconds=float("inf"))

    def _end(self, commit: PullCommit, *, is_stored: bool, seconds: float = 0.0) -> None:
        if self._in_flight.get(commit.queue) is commit:
            del self._in_flight[commit.queue]
            if is_stored:
                self._on_stored(commit)
            else:
                self._unanswered.shorten_deadline(commit.unanswered, seconds)


class FirstCommits:
    """Locks that delay further commits of a topic on a broker until the first commit is answered.

    At the first commit the broker creates the table of a group's offsets of a topic, without a lock
    (`ConsumerOffsetManager`). If two first commits arrive at once, each creates a table and one table replaces the
    other: both commits are answered with success, and one is lost.
    """

    def __init__(self, connection: Callable[[MessageQueue], RemotingConnection | None]) -> None:
        self._connection = connection
        self._turns: dict[tuple[str, str], asyncio.Lock] = {}  # (topic, broker) -> lock
        self._begun: dict[tuple[str, str], RemotingConnection | None] = {}  # table -> connection on which it existed

    @contextlib.asynccontextmanager
    async def hold_turn(self, queue: MessageQueue) -> AsyncIterator[None]:
        """A context for one commit. Entering it waits while the first commit to the same table is in flight."""
        table = (queue.topic, queue.broker_name)
        if not self.has_table(queue):
            async with self._turns.setdefault(table, asyncio.Lock()):
                if not self.has_table(queue):
                    yield
                    self._begun[table] = self._connection(queue)
                    return
        yield

    def forget(self, queue: MessageQueue) -> None:
        """Record that the broker has lost the queue's table, or may have lost it."""
        self._begun.pop((queue.topic, queue.broker_name), None)

    def has_table(self, queue: MessageQueue) -> bool:
        """Return whether the broker has the table, so that commits of the queue may run concurrently."""
        table = (queue.topic, queue.broker_name)
        return table in self._begun and self._begun[table] is self._connection(queue)

    def record_table(self, queue: MessageQueue, offset: int) -> None:
        """Called when the broker has returned this offset, so it has the table. 0 proves nothing: it may mean none."""
        if offset > 0:
            self._begun[queue.topic, queue.broker_name] = self._connection(queue)
