"""Handler calls in transactions of a custom offset store, and the offsets that such a group commits to brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest

from rmqd.client.instance import ClientInstance
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.batch_worker import Worker
from rmqd.consumer.handling.handler_failures import ConsumeTimeoutError
from rmqd.consumer.offsets.own_store import CustomOffsetStore, OffsetTransactions
from rmqd.consumer.offsets.persistence import OFFSET_WATCH_SECONDS
from rmqd.consumer.stats.counters import TopicStats
from rmqd.errors import OffsetStoreError, QueueTakenError
from rmqd.handler_api.batch import Batch, Outcome
from rmqd.offset_stores import StoredProgress, StoredQueue, offset_connection
from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock
from tests.consumer.blocks import QUEUE, block_of
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.offsets.owner import Overlaps, Owner
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

KEY = StoredQueue("c", GROUP, QUEUE.topic, QUEUE.broker_name, QUEUE.queue_id)


class Database:
    """A database in memory. A transaction holds the rows that its end stores."""

    def __init__(self, stored: StoredProgress | None = None) -> None:
        self.rows: dict[StoredQueue, StoredProgress | None] = {KEY: stored}
        self.owners: list[str] = []
        self.is_open = False
        self.on_request: Callable[[], object] = lambda: None
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def take(self, queue: StoredQueue, owner: str) -> StoredProgress | None:
        self.on_request()
        self.owners.append(owner)
        return self.rows.get(queue)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        self.on_request()
        connection: dict[StoredQueue, StoredProgress | None] = {}
        yield connection
        await asyncio.sleep(0)
        self.rows |= connection

    async def write(self, connection: Any, queue: StoredQueue, owner: str, progress: StoredProgress) -> bool:
        self.on_request()
        await self.may_write.wait()
        if owner != self.owners[-1]:
            return False
        connection[queue] = progress
        return True


class Member:
    """A worker with a batch of the messages `first` to 9, whose queue this member has taken in the database."""

    def __init__(self, database: Database, first: int = 0) -> None:
        self.database = database
        self.clock = ManualClock()
        self.transactions = OffsetTransactions(database, "me", lambda queue: KEY, self.clock)
        self.cache = ProcessQueue(QUEUE, first, TopicStats(QUEUE.topic, is_retry=False))
        self.cache.put(block_of(range(first, 10)), 10)
        self.worker = Worker(cast("Any", None), 0)
        self.worker.process_queue = self.cache
        self.worker.batch = self.batch = Batch(self.cache.take(10), QUEUE)
        self.handled: list[int] = []

    @property
    def stored(self) -> StoredProgress | None:
        """The progress in the database."""
        return self.database.rows[KEY]

    async def call(
        self, act: Callable[[Batch], object] = lambda batch: None, *, only: Sequence[int] = range(10)
    ) -> object:
        """Call the handler for the messages at the indexes `only`."""

        async def handle(batch: Batch) -> object:
            self.handled += [message.queue_offset for message in batch]
            act(batch)
            return "result"

        return await self.transactions.call_in_transaction(handle, self.worker, self.batch.part(only))

    def disturb(self, batch: Batch) -> None:
        """Take the queue as another member."""
        self.database.owners.append("other")


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
    assert taken.stored == StoredProgress(3, "5-5")
    assert await taken.call() == "result"
    assert taken.handled == [3, 4, 6, 7, 8, 9] * 2
    assert len(taken.database.owners) == 1


async def test_a_commit_decides_all_messages_and_ends_the_transaction_of_the_call(taken: Member) -> None:
    """If the call expires right after the commit, its messages must not be sent back."""
    connections = []
    await taken.call(lambda batch: connections.append(offset_connection()))
    assert [one.outcome for one in taken.batch.decisions().values()] == [Outcome.ACK] * 10
    assert connections == [{KEY: StoredProgress(10)}]
    with pytest.raises(RuntimeError, match="no transaction"):
        offset_connection()


async def test_the_time_of_the_stores_requests_is_not_the_handlers() -> None:
    """Nor does the worker count as running a handler during these requests."""
    member, batches = Member(Database()), list[Batch | None]()
    await member.transactions.take(QUEUE)
    member.database.owners.append("other")
    with pytest.raises(OffsetStoreError):
        await member.call()
    member.worker.started = began = member.clock.monotonic()

    def request() -> None:
        member.clock.turn(2.0)
        batches.append(member.worker.batch)

    member.database.on_request = request
    await member.call(lambda batch: batches.append(member.worker.batch))
    assert batches == [None, None, member.batch, None]
    assert member.worker.started == began + 4.0
    assert member.worker.batch is member.batch


async def test_concurrent_calls_of_a_queue_store_what_all_have_finished() -> None:
    """Also messages that the cache does not yet know to be finished."""
    member = Member(Database())
    await member.transactions.take(QUEUE)
    await member.call(only=range(5, 10))
    assert member.stored == StoredProgress(0, "5-9")
    await member.call(only=range(5))
    assert member.stored == StoredProgress(10)


@pytest.mark.parametrize(("is_kept", "progress"), [(False, StoredProgress(3, "4-9")), (True, StoredProgress(3, "5-5"))])
async def test_messages_behind_a_retried_one_are_finished_unless_the_order_is_kept(
    taken: Member, is_kept: bool, progress: StoredProgress
) -> None:
    if is_kept:
        taken.transactions.keeps_batch_order = True
    await taken.call(lambda batch: batch.retry(batch[0]))
    assert taken.stored == progress


async def test_finished_messages_beyond_the_cache_stay_finished() -> None:
    member = Member(Database(StoredProgress(3, "5-5,10-10")))
    await member.transactions.take(QUEUE)
    await member.call()
    assert member.stored == StoredProgress(10, "10-10")


async def test_a_handler_that_cancels_its_task_does_not_interrupt_the_commit(taken: Member) -> None:
    task = cast("asyncio.Task[None]", asyncio.current_task())
    assert await taken.call(lambda batch: task.cancel()) == "result"
    assert taken.stored == StoredProgress(10)


async def test_a_call_of_a_previous_owner_is_not_committed(taken: Member) -> None:
    """The next call takes the queue again."""
    with pytest.raises(QueueTakenError, match=r"^another member has, or may have, acquired"):
        await taken.call(taken.disturb)
    assert taken.stored == StoredProgress(3, "5-5")
    await taken.call()
    assert (len(taken.database.owners), taken.stored) == (3, StoredProgress(10))


async def test_progress_of_a_previous_owner_is_not_stored(taken: Member) -> None:
    """The next attempt takes the queue again."""
    taken.disturb(taken.batch)
    with pytest.raises(QueueTakenError, match=r"^another member has, or may have, acquired"):
        await taken.transactions.store_progress(QUEUE, None, 6)
    assert taken.stored == StoredProgress(3, "5-5")
    await taken.transactions.store_progress(QUEUE, None, 6)
    assert (len(taken.database.owners), taken.stored) == (3, StoredProgress(6))
    await taken.transactions.take(QUEUE)
    assert taken.transactions.is_last_writer(QUEUE)


async def test_a_queue_that_could_not_be_taken_is_taken_again_before_the_next_call() -> None:
    member = Member(Database(StoredProgress(3, "5-5")))

    def fail() -> None:
        member.database.on_request = lambda: None
        raise ValueError("no connection")

    for owners in (0, 1):
        member.database.on_request = fail
        with pytest.raises(OffsetStoreError, match="the offset store failed: ValueError: no connection"):
            await member.transactions.take(QUEUE)
        assert not member.transactions.is_last_writer(QUEUE)
        assert len(member.database.owners) == owners
        await member.call()
    assert (len(member.database.owners), member.stored) == (2, StoredProgress(10))


async def test_an_interrupted_commit_leaves_the_queue_in_doubt(taken: Member) -> None:
    taken.database.on_request = lambda: task.cancel() if taken.handled else None
    task = asyncio.create_task(taken.call())
    with pytest.raises(OffsetStoreError, match="interrupted; whether it took effect is unknown"):
        await task
    taken.database.on_request = lambda: None
    await taken.call()
    assert len(taken.database.owners) == 2


async def test_a_call_for_a_released_queue_is_not_committed(taken: Member) -> None:
    """Its messages are handled again by the next owner."""

    def release(batch: Batch) -> None:
        for message in batch:
            batch.ack(message)
        taken.cache.dropped = True

    assert await taken.call(release) is None
    assert taken.stored == StoredProgress(3, "5-5")
    outcomes = [taken.batch.decisions()[index].outcome for index in (3, 4, 6, 9)]
    assert outcomes == [Outcome.AGAIN] * 4
    taken.transactions.forget(QUEUE)
    with pytest.raises(OffsetStoreError, match="the queue was released"):
        await taken.call()
    await taken.transactions.store_progress(QUEUE, None, 6)
    assert taken.stored == StoredProgress(3, "5-5")


async def test_the_cache_of_a_released_queue_is_not_stored(taken: Member) -> None:
    """It is empty. If it were stored, the next owner would skip messages that no handler has finished."""
    taken.database.may_write.clear()
    work = [taken.call(only=(3,)), taken.call(only=(4,)), taken.transactions.store_progress(QUEUE, taken.cache, 3)]
    tasks = [asyncio.create_task(one) for one in work]
    await eventually(lambda: taken.handled == [3, 4], "the first call is committed, and the others wait for it")
    taken.cache.drop("handed_over")
    taken.database.may_write.set()
    await asyncio.gather(*tasks)
    assert taken.stored == StoredProgress(4, "5-5")
    assert taken.batch.decisions()[4].outcome is Outcome.AGAIN


@pytest.mark.parametrize("state", ["expired", "replaced"])
async def test_a_call_that_returns_after_its_deadline_is_not_committed(taken: Member, state: str) -> None:
    with pytest.raises(ConsumeTimeoutError):
        await taken.call(lambda batch: setattr(taken.worker, state, True))
    assert taken.stored == StoredProgress(3, "5-5")


async def test_messages_after_a_reset_are_handled_although_the_store_has_them_as_finished() -> None:
    """Also if the queue is taken again before the reset is stored."""
    member = Member(Database(StoredProgress(8)), first=6)
    member.transactions.record_move(QUEUE, 6, downward=True)  # not taken yet
    await member.transactions.take(QUEUE)
    member.transactions.record_move(QUEUE, 6, downward=True)
    await member.transactions.take(QUEUE)
    await member.call(only=range(4))
    assert member.handled == [6, 7, 8, 9]


async def test_a_commit_in_flight_does_not_end_a_reset(taken: Member) -> None:
    """If the reset is not stored yet, the next take must not return the progress of the dropped cache."""
    taken.database.may_write.clear()
    call = asyncio.create_task(taken.call(only=(4,)))
    await eventually(lambda: taken.handled == [4], "the call is being committed")
    taken.cache.drop("offset_moved")
    taken.transactions.record_move(QUEUE, 0, downward=True)
    taken.database.may_write.set()
    await call
    await taken.transactions.take(QUEUE)
    taken.worker.process_queue = ProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False))
    await taken.call(only=range(3))
    assert taken.handled == [4, 0, 1, 2]


@pytest.mark.parametrize(("offset", "downward", "is_repeated"), [(5, False, True), (4, True, True), (4, False, False)])
async def test_a_move_back_or_to_a_finished_message_discards_the_progress(
    taken: Member, offset: int, downward: bool, is_repeated: bool
) -> None:
    taken.transactions.record_move(QUEUE, offset, downward=downward)
    await taken.call()
    assert taken.handled == (list(range(10)) if is_repeated else [3, 4, 6, 7, 8, 9])


async def test_the_last_writer_of_a_queue_is_known_after_the_next_take(taken: Member) -> None:
    assert not taken.transactions.is_last_writer(QUEUE)
    await taken.call()
    await taken.transactions.take(QUEUE)
    assert taken.transactions.is_last_writer(QUEUE) is True
    taken.database.rows[KEY] = StoredProgress(12)
    await taken.transactions.take(QUEUE)
    assert taken.transactions.is_last_writer(QUEUE) is False


@dataclass
class Group:
    """A member of a group with a store of its own. At the start the store has offset 7, and the broker has 4."""

    owner: Owner
    database: Database
    store: CustomOffsetStore
    queue: MessageQueue
    overlaps: Overlaps

    @property
    def stored(self) -> StoredProgress | None:
        """The progress in the database."""
        return self.database.rows[KEY]


@pytest.fixture
async def group(owner: Owner) -> Group:
    database = Database(StoredProgress(7))
    store = CustomOffsetStore(owner.client, GROUP, owner.clock, database)
    await store.open()
    overlaps = Overlaps()
    store.begin_ownership(owner.queue, await store.read(owner.queue), overlaps)
    return Group(owner, database, store, owner.queue, overlaps)


async def test_commits_to_the_broker_are_compared_with_the_brokers_offset(group: Group) -> None:
    """An offset below the broker's is a reset, which the group must not overwrite."""
    assert group.store.committed == {group.queue: 4}
    group.owner.set_back(2)
    assert await group.store.persist({group.queue: 8})
    assert (group.stored, group.owner.stored) == (StoredProgress(8), 2)


async def test_a_round_stores_offsets_in_the_store_and_then_at_the_broker(group: Group) -> None:
    assert await group.store.persist({group.queue: 8})
    assert (group.stored, group.owner.stored) == (StoredProgress(8), 8)
    group.database.owners.append("other")
    assert not await group.store.persist({group.queue: 9})
    assert (group.stored, group.owner.stored) == (StoredProgress(8), 8)


async def test_a_release_stores_the_progress_unless_the_queue_is_lost(group: Group) -> None:
    """After that, the progress is no longer this member's."""
    await group.store.commit_upward(group.queue, 8, lambda: False)
    assert (group.stored, group.owner.stored) == (StoredProgress(7), 4)
    await group.store.commit_upward(group.queue, 9)
    assert (group.stored, group.owner.stored) == (StoredProgress(9), 9)
    await group.store.read(group.queue)
    assert group.store.may_have_committed(group.queue, 3)
    group.store.forget(group.queue)
    assert not group.store.may_have_committed(group.queue, 3)
    assert not group.store.committed


async def test_close_ends_the_commits_in_flight_and_closes_the_store(group: Group) -> None:
    group.owner.hold_next_commit()
    commit = await group.owner.begin(group.store.commit(group.queue, 9))
    assert group.database.is_open
    await group.store.close()
    await asyncio.wait((commit,))
    assert commit.cancelled()
    assert not group.database.is_open


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
    assert not database.is_open


async def test_the_progress_of_the_cache_is_stored_until_the_ownership_ends(
    queue: MessageQueue, client: ClientInstance, clock: ManualClock
) -> None:
    """A reset to another offset stores that offset."""
    await client.routes.lookup(TOPIC)
    database, overlaps = Database(), Overlaps()
    cache = ProcessQueue(queue, 3, TopicStats(TOPIC, is_retry=False))
    cache.put(block_of(range(3, 7)), 7)
    cache.finish([message for message in cache.take(4) if message.queue_offset == 5])
    overlaps.process_queues = (cache,)
    store = CustomOffsetStore(client, GROUP, clock, database)
    store.begin_ownership(queue, await store.read(queue), overlaps)
    for offset, downward, progress in (
        (5, False, StoredProgress(3, "5-5")),
        (2, True, StoredProgress(2)),
        (3, True, StoredProgress(3, "5-5")),
    ):
        await store.commit(queue, offset, downward=downward)
        assert database.rows[KEY] == progress
    await store.persist({queue: 6})
    assert database.rows[KEY] == StoredProgress(3, "5-5")
    store.forget(queue)
    await store.read(queue)
    await store.commit(queue, 7)
    assert database.rows[KEY] == StoredProgress(7)


async def test_a_round_stores_a_message_that_is_finished_outside_of_a_transaction(group: Group) -> None:
    """It was sent back. If it were not stored, the next owner would handle it in addition to its retry."""
    cache = ProcessQueue(group.queue, 7, TopicStats(TOPIC, is_retry=False))
    cache.put(block_of(range(7, 10)), 10)
    group.overlaps.process_queues = (cache,)
    await group.store.persist({group.queue: 7})
    assert group.stored == StoredProgress(7)
    group.owner.clock.turn(OFFSET_WATCH_SECONDS)
    cache.finish(cache.take(2)[1:])
    await group.store.persist({group.queue: 7})
    assert (group.stored, group.owner.stored) == (StoredProgress(7, "8-8"), 7)
    assert not group.store.needs_commit(group.queue, 7)


async def test_a_reset_that_could_not_be_stored_is_stored_by_the_next_round(group: Group) -> None:
    """Although the broker has stored it, and no message follows."""

    def fail() -> None:
        raise ValueError("no connection")

    group.owner.clock.turn(OFFSET_WATCH_SECONDS)
    group.overlaps.process_queues = (ProcessQueue(group.queue, 9, TopicStats(TOPIC, is_retry=False)),)
    group.database.on_request = fail
    with pytest.raises(OffsetStoreError):
        await group.store.commit(group.queue, 9, downward=True)
    assert (group.stored, group.owner.stored) == (StoredProgress(7), 9)
    group.database.on_request = lambda: None
    await group.store.persist({group.queue: 9})
    assert group.stored == StoredProgress(9)
    assert not group.store.needs_commit(group.queue, 9)


async def test_a_reset_to_the_offset_of_a_dropped_cache_is_stored(group: Group) -> None:
    group.overlaps.process_queues = (ProcessQueue(group.queue, 9, TopicStats(TOPIC, is_retry=False)),)
    group.overlaps.process_queues[0].drop("stopped")
    await group.store.commit(group.queue, 9, downward=True)
    assert (group.stored, group.owner.stored) == (StoredProgress(9), 9)
