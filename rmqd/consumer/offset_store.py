"""The group's offsets on the brokers: read once at a take-over, written every few seconds and at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import structlog

from rmqd.client.api.offset import StoredOffset, query_stored_offset, update_consumer_offset
from rmqd.client.connection import RemotingConnection
from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.errors import BrokerAwayError, RmqdError
from rmqd.wire.message import MessageQueue

log = structlog.get_logger(__name__)

OFFSET_TIMEOUT_SECONDS = 5.0  # Java: updateConsumerOffset
REPEAT_SECONDS = 30.0  # an offset that does not change is written again: its group may have been deleted meanwhile


@dataclass(frozen=True, slots=True)
class _Written:
    """When a queue's offset was last known to be stored (monotonic), and the connection that told so."""

    at: float
    on: RemotingConnection | None


class RemoteBrokerOffsetStore:
    """Commits with answered requests, and only upward within one ownership of a queue.

    An operator's reset is the exception, and the last word: no commit that was decided on before it comes after it.

    A broker that was restarted, and a replica in its place, may have less than what was committed: the last seconds
    were not flushed, or not replicated. So what was stored by another connection than the present one is stored again.
    """

    def __init__(self, client: ClientInstance, group: str, clock: Clock) -> None:
        self._client = client
        self._group = group
        self._clock = clock
        self.committed: dict[MessageQueue, int] = {}
        self.committed_at: dict[MessageQueue, float] = {}  # Unix seconds of the last answered commit
        self.failures = 0
        self._turns: dict[MessageQueue, asyncio.Lock] = {}
        self._firsts: dict[tuple[str, str], asyncio.Lock] = {}  # by topic and broker
        self._begun: dict[tuple[str, str], RemotingConnection | None] = {}
        self._written: dict[MessageQueue, _Written] = {}
        self._resets: set[MessageQueue] = set()  # moved by an operator, which no answer has confirmed yet
        self._epochs: dict[MessageQueue, int] = {}  # raised by a reset and at the end of an ownership

    async def open(self) -> None:
        """Nothing to do: the brokers are there or not, queue by queue."""

    async def close(self) -> None:
        """Nothing to let go of."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The committed offset that the broker has; None for a group that is new to the queue. Raises RmqdError."""
        found = await self.look_up(queue)
        return None if found is None else found.offset

    async def look_up(self, queue: MessageQueue) -> StoredOffset | None:
        """The same, with whether the broker knows the difference between 0 and nothing. Raises RmqdError."""
        return await query_stored_offset(
            self._client.remoting, self._address(queue), self._group, queue, timeout_seconds=OFFSET_TIMEOUT_SECONDS
        )

    async def found(self, queue: MessageQueue, offset: int) -> None:
        """Store where a new group begins, whoever has the queue; what is stored already is left. Raises RmqdError."""
        async with self._first_alone(queue, again=False):
            if await self.read(queue) is None:
                await self._write(queue, offset)

    def take_over(self, queue: MessageQueue, offset: int | None) -> None:
        """A new ownership begins where the broker says; what an earlier one knew is forgotten."""
        self.forget(queue)
        if offset is not None:
            self.committed[queue] = offset
        # brokers of 4.9 say 0 too where nothing is stored, and refuse resets of a topic until all its queues are
        at = float("-inf") if offset == 0 else self._clock.monotonic()
        self._written[queue] = _Written(at, self._connection(queue))

    def forget(self, queue: MessageQueue) -> None:
        """The queue is not ours any more."""
        self.committed.pop(queue, None)
        self.committed_at.pop(queue, None)
        self._turns.pop(queue, None)
        self._written.pop(queue, None)
        self._resets.discard(queue)
        self._epochs[queue] = self._epoch(queue) + 1

    async def commit(self, queue: MessageQueue, offset: int, *, downward: bool = False) -> None:
        """Store an offset and wait for the answer. Raises RmqdError.

        An offset that is not above the committed one is left out, unless an operator's reset goes `downward`; that is
        remembered until an answer confirms it, also if this request fails.
        """
        if downward:
            self._epochs[queue] = self._epoch(queue) + 1
            self._resets.add(queue)
        await self._commit(queue, offset, self._epoch(queue))

    async def commit_upward(self, queue: MessageQueue, offset: int) -> None:
        """Commit for a queue that is being given up: the next owner may be further already. Raises RmqdError."""
        epoch, stored = self._epoch(queue), await self.read(queue)
        if stored is None:
            self.committed.pop(queue, None)  # the broker has lost it, or the group was deleted
        if stored is None or queue in self._resets:
            await self._commit(queue, offset, epoch)
        elif stored < self.committed.get(queue, 0) and not self.may_be_lost(queue):
            # somebody else set it back: an operator, whose reset the next owner's first pull brings
            log.warning("offset.set_back", queue=str(queue), offset=offset, stored=stored)
        elif offset > stored:
            await self._commit(queue, offset, epoch)

    def may_be_lost(self, queue: MessageQueue) -> bool:
        """Whether the broker may have less than what was committed, without anybody having set it back."""
        written = self._written.get(queue)
        return written is not None and written.on is not self._connection(queue)

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """Commit many offsets at once; says whether all were taken. A failure is logged, the next round tries again."""
        wanted = [(queue, offset, self._epoch(queue)) for queue, offset in offsets.items()]
        results = await asyncio.gather(*(self._try_commit(*commit) for commit in wanted))
        return all(results)

    def _epoch(self, queue: MessageQueue) -> int:
        return self._epochs.get(queue, 0)

    async def _commit(self, queue: MessageQueue, offset: int, epoch: int) -> None:
        # one after the other: the broker's threads may take up two requests in any order
        async with self._turns.setdefault(queue, asyncio.Lock()):
            if self._epoch(queue) != epoch or not self._is_news(queue, offset):
                return
            async with self._first_alone(queue, again=self.committed.get(queue) == offset):
                await self._write(queue, offset)
            if self._epoch(queue) != epoch:
                return
            self._resets.discard(queue)
            self._written[queue] = _Written(self._clock.monotonic(), self._connection(queue))
            if self.committed.get(queue) != offset:
                self.committed[queue] = offset
                self.committed_at[queue] = self._clock.wall()

    async def _write(self, queue: MessageQueue, offset: int) -> None:
        try:
            await update_consumer_offset(
                self._client.remoting,
                self._address(queue),
                self._group,
                queue,
                offset,
                timeout_seconds=OFFSET_TIMEOUT_SECONDS,
            )
        except RmqdError:
            self.failures += 1
            raise

    @contextlib.asynccontextmanager
    async def _first_alone(self, queue: MessageQueue, *, again: bool) -> AsyncIterator[None]:
        """Let the topic's first commit on a broker be answered before the next one is sent.

        The broker makes a table for a group's topic with its first commit, and no lock (`ConsumerOffsetManager`): of
        two that come at once, one is answered with success, and lost. An offset that is stored `again` may be the first
        as well: the group may have been deleted.
        """
        table = (queue.topic, queue.broker_name)
        if again or not self._is_begun(table, queue):
            async with self._firsts.setdefault(table, asyncio.Lock()):
                if again or not self._is_begun(table, queue):
                    yield
                    self._begun[table] = self._connection(queue)
                    return
        yield

    def _is_begun(self, table: tuple[str, str], queue: MessageQueue) -> bool:
        return table in self._begun and self._begun[table] is self._connection(queue)

    def _is_news(self, queue: MessageQueue, offset: int) -> bool:
        known = self.committed.get(queue)
        if known is None or offset > known or queue in self._resets:
            return True
        written = self._written[queue]
        is_old = self._clock.monotonic() - written.at >= REPEAT_SECONDS
        return offset == known and (is_old or self.may_be_lost(queue))

    async def _try_commit(self, queue: MessageQueue, offset: int, epoch: int) -> bool:
        try:
            await self._commit(queue, offset, epoch)
        except RmqdError as error:
            if not error.is_told:
                log.warning("offset.commit_failed", queue=str(queue), offset=offset, error=str(error))
            return False
        return True

    def _connection(self, queue: MessageQueue) -> RemotingConnection | None:
        """The one by which the queue's offset is stored now; None while there is none."""
        address = self._client.routes.address(queue.broker_name)
        return None if address is None else self._client.remoting.connected(address)

    def _address(self, queue: MessageQueue) -> str:
        address = self._client.routes.address(queue.broker_name)
        if address is None:
            raise BrokerAwayError(queue.topic, queue.broker_name)
        return address
