"""A member that owns a queue at a scripted broker, for tests of the offset store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TypeVar

from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.offsets.broker_store import OFFSET_TIMEOUT_SECONDS, RemoteBrokerOffsetStore
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Owner:
    """A member that acquired a queue at offset 4."""

    broker: ScriptedBroker
    queue: MessageQueue
    client: ClientInstance
    clock: ManualClock
    store: RemoteBrokerOffsetStore

    @property
    def stored(self) -> int:
        """The broker's stored offset."""
        return self.broker.offsets[GROUP, self.queue]

    @property
    def commits(self) -> list[int]:
        """The offsets that were committed to the broker."""
        return self.broker.commits_of(self.queue)

    def set_back(self, offset: int) -> None:
        """Store an offset as another client, or as a broker that lost ours."""
        self.broker.offsets[GROUP, self.queue] = offset

    async def persist(self, offset: int) -> bool:
        """Run a round of commits."""
        return await self.store.persist({self.queue: offset})

    def hold_next_commit(self) -> asyncio.Event:
        """Delay the broker's next commit until the event is set. Later commits run at once."""
        go_on = asyncio.Event()

        async def update(command: RemotingCommand) -> Reply:
            self.broker.peer.on(UPDATE, self.broker.update)
            await go_on.wait()
            return self.broker.update(command)

        self.broker.peer.on(UPDATE, update)
        return go_on

    async def begin(self, commit: Coroutine[None, None, T]) -> asyncio.Task[T]:
        """Start the first commit, and wait until the broker has received it."""
        task = asyncio.create_task(commit)
        await self.broker.peer.received(UPDATE)
        return task

    async def lose_connection(self) -> None:
        """Lose the connection, as after a restart of the broker."""
        self.broker.peer.cut()
        await eventually(lambda: self.store.may_be_lost(self.queue), "the connection is lost")

    async def doubt(self) -> None:
        """Require a check of the stored offsets, as after a suspension."""
        self.store.recheck_stored_offsets()

    @property
    def reads(self) -> int:
        """The number of queries of the stored offset."""
        return len(self.broker.peer.got(RequestCode.QUERY_CONSUMER_OFFSET))

    async def let_deadline_pass(self) -> None:
        """Advance past the deadline of the commit in flight, while the broker answers other requests."""
        await self.client.routes.refresh(TOPIC)
        await self.clock.advance(OFFSET_TIMEOUT_SECONDS)

    async def commit_late(self, offset: int) -> None:
        """Persist an offset that the broker stores after the commit's deadline."""
        go_on = self.hold_next_commit()
        late = await self.begin(self.persist(offset))
        await self.let_deadline_pass()
        assert not await late
        go_on.set()
        await self.clock.until(lambda: self.commits == [offset], "the broker stores the late commit")
        await self.clock.advance(1.0)


class Overlaps:
    """An offset watcher that counts messages handled twice."""

    process_queues: tuple[ProcessQueue, ...] = ()

    def __init__(self) -> None:
        self.messages = 0

    def count_handled_twice(self, messages: int) -> None:
        self.messages += messages

    def move_to(self, offset: int) -> None:
        raise AssertionError(offset)
