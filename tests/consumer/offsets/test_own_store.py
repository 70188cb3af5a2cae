"""Handler calls in transactions of a custom offset store, and the offsets that such a group commits to brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from rmqd.client.instance import ClientInstance
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.batch_worker import Worker
from rmqd.consumer.handling.handler_failures import ConsumeTimeoutError
from rmqd.consumer.offsets.own_store import CustomOffsetStore, OffsetTransactions
from rmqd.consumer.stats.counters import TopicStats
from rmqd.errors import OffsetStoreError
from rmqd.handler_api.batch import Batch
from rmqd.offset_stores import StoredProgress, StoredQueue
from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock
from tests.consumer.blocks import QUEUE, block_of
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.offsets.owner import Overlaps
from tests.consumer.scripted_broker import ScriptedBroker

KEY = StoredQueue("c", GROUP, QUEUE.topic, QUEUE.broker_name, QUEUE.queue_id)


class Database:
    """A database in memory. A transaction holds the rows that its end stores."""

    def __init__(self, stored: StoredProgress | None = None) -> None:
        self.rows: dict[StoredQueue, StoredProgress | None] = {KEY: stored}
        self.owners: list[str] = []
        self.is_closed = False

    async def open(self) -> None: ...

    async def close(self) -> None:
        self.is_closed = True

    async def take(self, queue: StoredQueue, owner: str) -> StoredProgress | None:
        self.owners.append(owner)
        return self.rows.get(queue)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        connection: dict[StoredQueue, StoredProgress | None] = {}
        yield connection
        await asyncio.sleep(0)
        self.rows |= connection

    async def write(self, connection: Any, queue: StoredQueue, owner: str, progress: StoredProgress) -> bool:
        if owner != self.owners[-1]:
            return False
        connection[queue] = progress
        return True


class Member:
    """A worker with a batch of the messages `first` to 9, whose queue this member has taken in the database."""

    def __init__(self, database: Database, first: int = 0) -> None:
        self.database = database
        self.transactions = OffsetTransactions(database, "me", lambda queue: KEY, ManualClock())
        self.cache = ProcessQueue(QUEUE, first, TopicStats(QUEUE.topic, is_retry=False))
        self.cache.put(block_of(range(first, 10)), 10)
        self.worker = Worker(cast("Any", None), 0)
        self.worker.process_queue = self.cache
        self.worker.batch = self.batch = Batch(self.cache.take(10), QUEUE)
        self.handled: list[int] = []

    async def call(self, act: Callable[[Batch], object] = lambda batch: None) -> object:
        async def handle(batch: Batch) -> object:
            self.handled += [message.queue_offset for message in batch]
            act(batch)
            return "result"

        return await self.transactions.call_in_transaction(handle, self.worker, self.batch)


@pytest.fixture
async def taken() -> Member:
    member = Member(Database(StoredProgress(3, "5-5")))
    await member.transactions.take(QUEUE)
    return member


async def test_a_handlers_error_is_raised_and_leaves_the_queue_owned(taken: Member) -> None:
    """The store is not asked again."""

    def fail(batch: Batch) -> None:
        batch.ack(batch[0])
        raise ValueError("bad order")

    with pytest.raises(ValueError, match="bad order"):
        await taken.call(fail)
    assert 0 in taken.batch.decisions(), "handled before"
    assert 3 not in taken.batch.decisions(), "its effect is rolled back"
    assert taken.database.rows[KEY] == StoredProgress(3, "5-5")
    assert await taken.call() == "result"
    assert taken.handled == [3, 4, 6, 7, 8, 9] * 2
    assert len(taken.database.owners) == 1


async def test_a_handler_that_cancels_its_task_does_not_interrupt_the_commit(taken: Member) -> None:
    task = cast("asyncio.Task[None]", asyncio.current_task())
    assert await taken.call(lambda batch: task.cancel()) == "result"
    assert taken.database.rows[KEY] == StoredProgress(10)


async def test_a_call_of_a_previous_owner_is_not_committed(taken: Member) -> None:
    """The next call takes the queue again."""
    with pytest.raises(OffsetStoreError, match="another member took"):
        await taken.call(lambda batch: taken.database.owners.append("other"))
    assert taken.database.rows[KEY] == StoredProgress(3, "5-5")
    await taken.call()
    assert (len(taken.database.owners), taken.database.rows[KEY]) == (3, StoredProgress(10))


@pytest.mark.parametrize("state", ["expired", "replaced"])
async def test_a_call_that_returns_after_its_deadline_is_not_committed(taken: Member, state: str) -> None:
    with pytest.raises(ConsumeTimeoutError):
        await taken.call(lambda batch: setattr(taken.worker, state, True))
    assert taken.database.rows[KEY] == StoredProgress(3, "5-5")


async def test_messages_after_a_reset_are_handled_although_the_store_has_them_as_finished() -> None:
    """Also if the queue is taken again before the reset is stored."""
    member = Member(Database(StoredProgress(8)), first=6)
    await member.transactions.take(QUEUE)
    member.transactions.record_move(QUEUE, 6, downward=True)
    await member.transactions.take(QUEUE)
    await member.call()
    assert member.handled == [6, 7, 8, 9]


async def test_the_last_writer_of_a_queue_is_known_after_the_next_take(taken: Member) -> None:
    assert not taken.transactions.is_last_writer(QUEUE)
    await taken.call()
    await taken.transactions.take(QUEUE)
    assert taken.transactions.is_last_writer(QUEUE) is True
    taken.database.rows[KEY] = StoredProgress(12)
    await taken.transactions.take(QUEUE)
    assert taken.transactions.is_last_writer(QUEUE) is False


@pytest.mark.parametrize(("cluster_id", "cluster"), [("", KEY.cluster), ("7f3a", "7f3a")])
async def test_a_start_offset_is_stored_for_the_cluster_and_at_the_broker(
    broker: ScriptedBroker,
    queue: MessageQueue,
    client: ClientInstance,
    clock: ManualClock,
    cluster_id: str,
    cluster: str,
) -> None:
    """The cluster is named by its id, or by its name if there is no id."""
    await client.routes.lookup(TOPIC)
    client.cluster_id.id = cluster_id
    database = Database()
    store = CustomOffsetStore(client, GROUP, clock, database)
    await store.read(queue)
    await store.commit(queue, 5)
    await store.close()
    assert database.rows[StoredQueue(cluster, GROUP, *queue)] == StoredProgress(5)
    assert broker.offsets[GROUP, queue] == 5
    assert database.is_closed


async def test_the_cache_of_an_ended_ownership_is_not_stored(
    queue: MessageQueue, client: ClientInstance, clock: ManualClock
) -> None:
    await client.routes.lookup(TOPIC)
    database, overlaps = Database(), Overlaps()
    overlaps.process_queues = (ProcessQueue(queue, 3, TopicStats(TOPIC, is_retry=False)),)
    store = CustomOffsetStore(client, GROUP, clock, database)
    store.begin_ownership(queue, await store.read(queue), overlaps)
    await store.commit(queue, 5)
    assert database.rows[KEY] == StoredProgress(3)
    store.forget(queue)
    await store.read(queue)
    await store.commit(queue, 7)
    assert database.rows[KEY] == StoredProgress(7)
