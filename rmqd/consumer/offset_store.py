"""The group's offsets on the brokers: read once at a take-over, written every few seconds and at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from rmqd.client.api.offset import query_consumer_offset, update_consumer_offset
from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.errors import RmqdError, RouteNotFoundError
from rmqd.wire.message import MessageQueue

log = structlog.get_logger(__name__)

OFFSET_TIMEOUT_SECONDS = 5.0  # Java: updateConsumerOffset


class RemoteBrokerOffsetStore:
    """Commits with answered requests, and only upward within one ownership of a queue."""

    def __init__(self, client: ClientInstance, group: str, clock: Clock) -> None:
        self._client = client
        self._group = group
        self._clock = clock
        self.committed: dict[MessageQueue, int] = {}
        self.committed_at: dict[MessageQueue, float] = {}  # Unix seconds of the last answered commit
        self._turns: dict[MessageQueue, asyncio.Lock] = {}

    async def open(self) -> None:
        """Nothing to do: the brokers are there or not, queue by queue."""

    async def close(self) -> None:
        """Nothing to let go of."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The committed offset that the broker has; None for a group that is new to the queue. Raises RmqdError."""
        return await query_consumer_offset(
            self._client.remoting, self._address(queue), self._group, queue, timeout_seconds=OFFSET_TIMEOUT_SECONDS
        )

    def take_over(self, queue: MessageQueue, offset: int | None) -> None:
        """A new ownership begins where the broker says; what an earlier one knew is forgotten."""
        self.forget(queue)
        if offset is not None:
            self.committed[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        """The queue is not ours any more."""
        self.committed.pop(queue, None)
        self.committed_at.pop(queue, None)
        self._turns.pop(queue, None)

    async def commit(self, queue: MessageQueue, offset: int, *, downward: bool = False) -> None:
        """Store an offset and wait for the answer. Raises RmqdError.

        An offset that is not above the committed one is left out, unless an operator's reset goes `downward`.
        """
        # one after the other: the broker's threads may take up two requests in any order
        async with self._turns.setdefault(queue, asyncio.Lock()):
            if downward:
                self.committed.pop(queue, None)  # also if the request fails: the next commits must not be left out
            known = self.committed.get(queue)
            if known is not None and offset <= known:
                return
            await update_consumer_offset(
                self._client.remoting,
                self._address(queue),
                self._group,
                queue,
                offset,
                timeout_seconds=OFFSET_TIMEOUT_SECONDS,
            )
            self.committed[queue] = offset
            self.committed_at[queue] = self._clock.wall()

    async def commit_upward(self, queue: MessageQueue, offset: int) -> None:
        """Commit for a queue that is being given up: the next owner may be further already. Raises RmqdError."""
        stored = await self.read(queue)
        if stored is None or offset > stored:
            await self.commit(queue, offset)

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """Commit many offsets at once; says whether all were taken. A failure is logged, the next round tries again."""
        results = await asyncio.gather(*(self._try_commit(queue, offset) for queue, offset in offsets.items()))
        return all(results)

    async def _try_commit(self, queue: MessageQueue, offset: int) -> bool:
        try:
            await self.commit(queue, offset)
        except RmqdError as error:
            log.warning("offset.commit_failed", queue=str(queue), offset=offset, error=str(error))
            return False
        return True

    def _address(self, queue: MessageQueue) -> str:
        address = self._client.routes.address(queue.broker_name)
        if address is None:
            raise RouteNotFoundError(queue.topic, f"no address is known for broker {queue.broker_name}")
        return address
