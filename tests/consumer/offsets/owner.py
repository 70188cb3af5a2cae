"""A member that owns a queue, with a broker that is scripted, for tests of the offset store."""

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
    """A member that owns a queue, and found it at offset 4."""

    broker: ScriptedBroker
    queue: MessageQueue
    client: ClientInstance
    clock: ManualClock
    store: RemoteBrokerOffsetStore

    @property
    def stored(self) -> int:
        """What the broker has."""
        return self.broker.offsets[GROUP, self.queue]

    @property
    def commits(self) -> list[int]:
        """What the broker was told."""
        return self.broker.commits_of(self.queue)

    def set_back(self, offset: int) -> None:
        """Somebody else stores an offset, or the broker loses ours."""
        self.broker.offsets[GROUP, self.queue] = offset

    async def persist(self, offset: int) -> bool:
        """A round of commits."""
        return await self.store.persist({self.queue: offset})

    def hold_next_commit(self) -> asyncio.Event:
        """Take up the next commit only once the event is set, and the others at once."""
        go_on = asyncio.Event()

        async def update(command: RemotingCommand) -> Reply:
            self.broker.peer.on(UPDATE, self.broker.update)
            await go_on.wait()
            return self.broker.update(command)

        self.broker.peer.on(UPDATE, update)
        return go_on

    async def begin(self, commit: Coroutine[None, None, T]) -> asyncio.Task[T]:
        """Start the first commit; the broker has the request."""
        task = asyncio.create_task(commit)
        await self.broker.peer.received(UPDATE)
        return task

    async def lose_connection(self) -> None:
        """As by a restart of the broker."""
        self.broker.peer.cut()
        await eventually(lambda: self.store.may_be_lost(self.queue), "the connection is lost")

    async def doubt(self) -> None:
        """As after a suspension."""
        self.store.recheck_stored_offsets()

    @property
    def reads(self) -> int:
        """How often the stored offset was asked for."""
        return len(self.broker.peer.got(RequestCode.QUERY_CONSUMER_OFFSET))

    async def let_deadline_pass(self) -> None:
        """Go on until the broker, which answers other requests, had its time for the commit under way."""
        await self.client.routes.refresh(TOPIC)
        await self.clock.advance(OFFSET_TIMEOUT_SECONDS)


class Overlaps:
    """Hears what others do to the stored offset."""

    process_queues: tuple[ProcessQueue, ...] = ()

    def __init__(self) -> None:
        self.messages = 0

    def count_handled_twice(self, messages: int) -> None:
        self.messages += messages

    def move_to(self, offset: int) -> None:
        raise AssertionError(offset)
