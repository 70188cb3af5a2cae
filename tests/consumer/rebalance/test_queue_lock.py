"""An orderly queue's lock: renewal, loss, recovery, and release while a handler runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.client.api.group_requests import lock_batch
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.rebalance.queue_lock import (
    BROKER_RESTART_SECONDS,
    QUEUES_PER_REQUEST,
    SLOW_REQUEST_INTERVAL_SECONDS,
    QueueLock,
)
from rmqd.handler_api.batch import Batch, Suspend
from rmqd.wire.bodies.group_bodies import LockBatchRequestBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Peer, Reply, route_of
from tests.client.running import running
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

ORDERLY: dict[str, Any] = {"consume_mode": "orderly"}
ELSEWHERE = "another member"


class Holding:
    """A handler that holds the batch at an offset until `release` is set. Records offsets, and the held batch."""

    def __init__(self, at: int = 2, *, raises: bool = False) -> None:
        self.seen: list[int] = []
        self.batch: Batch | None = None
        self.release = asyncio.Event()
        self._at = at
        self._raises = raises

    async def __call__(self, batch: Batch) -> None:
        self.seen.append(batch[0].queue_offset)
        if batch[0].queue_offset == self._at and not self.release.is_set():
            self.batch = batch
            await self.release.wait()
            if self._raises and batch.revoked:
                raise Suspend(0.02)

    @property
    def is_reported(self) -> bool:
        return self.batch is not None and self.batch.revoked

    async def let_go(self, one: Member) -> None:
        """End the batch, and wait until the member shows that it is locked out."""
        self.release.set()
        await eventually(lambda: (queue := one.queue()) and queue.state == "locked_out", "it is shown")


def locks(broker: ScriptedBroker, queue: MessageQueue) -> list[LockBatchRequestBody]:
    """The requests that asked for this queue's lock."""
    bodies = [LockBatchRequestBody.from_json(request.body) for request in broker.peer.got(RequestCode.LOCK_BATCH_MQ)]
    return [body for body in bodies if queue in body.queues]


@asynccontextmanager
async def losing(
    broker: ScriptedBroker, queue: MessageQueue, clock: ManualClock, *, messages: int = 5, raises: bool = False
) -> AsyncIterator[tuple[Member, Holding]]:
    """A member that lost the lock to another member while its handler has a batch, which is revoked."""
    await broker.store(queue, *[b"x"] * messages)
    holding = Holding(raises=raises)
    async with member(broker.peer.address, holding, clock=clock, **ORDERLY) as one:
        await eventually(lambda: holding.batch is not None, "the handler has the batch")
        await broker.committed(GROUP, queue, 2)
        broker.locks[GROUP, queue] = ELSEWHERE
        await eventually(lambda: holding.is_reported, "the batch is revoked")
        yield one, holding


@asynccontextmanager
async def locking(broker: ScriptedBroker, clock: ManualClock) -> AsyncIterator[tuple[ClientInstance, QueueLock]]:
    """The group's locks without a consumer, with a client that knows the topic's brokers."""
    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)), clock=clock)
    await client.routes.lookup(TOPIC)
    locks = QueueLock(client, GROUP, clock)
    async with running(locks.run()):
        yield client, locks
    await client.remoting.close()


async def test_all_locks_of_a_broker_are_renewed_in_one_request(broker: ScriptedBroker, flowing: ManualClock) -> None:
    queues = broker.create_topic(TOPIC, 3)
    async with member(broker.peer.address, Holding(), clock=flowing, **ORDERLY):
        await eventually(lambda: len(broker.locks) == 4, "all are locked")
        before = len(locks(broker, queues[0]))
        await eventually(lambda: len(locks(broker, queues[0])) >= before + 3, "they are renewed")
        assert {len(body.queues) for body in locks(broker, queues[0])[before + 1 :]} == {4}
    assert not broker.locks


async def test_a_lost_lock_stops_consumption_before_the_next_batch(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """The running batch is revoked. Nothing more is handed out, pulled or committed."""
    with capture_logs() as logs:
        async with losing(broker, queue, flowing) as (one, holding):
            await holding.let_go(one)
            pulls = len(broker.pulled_offsets(queue))
            await flowing.sleep(5)
            assert holding.seen == [0, 1, 2]
            assert broker.offsets[GROUP, queue] == 2
            assert len(broker.pulled_offsets(queue)) == pulls
            await one.stop()
    assert broker.offsets[GROUP, queue] == 2
    assert broker.locks == {(GROUP, queue): ELSEWHERE}
    assert [(e["queue"], e["log_level"]) for e in logs if e["event"] == "queue.lock_lost"] == [(str(queue), "warning")]


async def test_a_lost_lock_ends_the_current_turn(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """However much of its time slice is left."""
    async with losing(broker, queue, flowing) as (one, holding):
        await holding.let_go(one)
        await flowing.sleep(5)
        assert holding.seen == [0, 1, 2]


async def test_a_recovered_lock_continues_at_our_offset_if_no_other_member_consumed(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """Nothing is pulled or handled again. Messages finished meanwhile are committed."""
    async with losing(broker, queue, flowing) as (one, holding):
        await holding.let_go(one)
        del broker.locks[GROUP, queue]
        await broker.committed(GROUP, queue, 5)
        assert holding.seen == [0, 1, 2, 3, 4]
        assert holding.is_reported, "the batch stays revoked"
        assert one.topic().duplicates == {}
    assert broker.pulled_offsets(queue)[0] == 0
    assert set(broker.pulled_offsets(queue)[1:]) == {5}


async def test_a_recovered_lock_continues_at_the_stored_offset_if_others_consumed(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """Cached messages are discarded, and the result of the batch in flight is ignored."""
    with capture_logs() as logs:
        async with losing(broker, queue, flowing, messages=6) as (one, holding):
            broker.offsets[GROUP, queue] = 4
            del broker.locks[GROUP, queue]
            await eventually(lambda: 4 in broker.pulled_offsets(queue), "it is pulled from the broker's offset")
            assert holding.seen == [0, 1, 2], "one batch of a queue at a time, also now"
            holding.release.set()
            await broker.committed(GROUP, queue, 6)
            assert holding.seen == [0, 1, 2, 4, 5]
            assert one.topic().duplicates == {"lock_lost": 1}
    assert 3 not in broker.commits_of(queue)
    [entry] = [entry for entry in logs if entry["event"] == "queue.consumed_elsewhere"]
    assert (entry["committed"], entry["stored"]) == (2, 4)


async def test_an_offset_lowered_while_the_lock_was_lost_is_used_and_counted(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """As at every acquisition, it may be an operator's reset."""
    async with losing(broker, queue, flowing, messages=4) as (one, holding):
        await holding.let_go(one)
        broker.offsets[GROUP, queue] = 1
        del broker.locks[GROUP, queue]
        await broker.committed(GROUP, queue, 4)
        assert one.topic().falls["take_over"] == 1
    assert holding.seen == [0, 1, 2, 1, 2, 3]


async def test_a_handler_that_raises_for_a_revoked_batch_gets_it_again(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """The exception leaves the batch to the next owner."""
    async with losing(broker, queue, flowing, messages=3, raises=True) as (_, holding):
        holding.release.set()
        await flowing.sleep(5)
        del broker.locks[GROUP, queue]
        await broker.committed(GROUP, queue, 3)
        assert holding.seen == [0, 1, 2, 2]


async def test_a_batch_of_a_handler_in_a_thread_is_revoked(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    await broker.store(queue, b"x")
    begun, told = threading.Event(), threading.Event()

    def handle(batch: Batch) -> None:
        assert not batch.revoked
        begun.set()
        for _ in range(500):
            if batch.revoked:
                told.set()
                return
            threading.Event().wait(0.01)

    async with member(broker.peer.address, handle, clock=flowing, is_async=False, **ORDERLY):
        await eventually(begun.is_set, "it is called")
        broker.locks[GROUP, queue] = ELSEWHERE
        await eventually(told.is_set, "the batch is revoked")


@pytest.mark.parametrize("silence", [None, Reply(ResponseCode.SYSTEM_ERROR, "busy")])
async def test_a_lock_that_cannot_be_renewed_is_lost_before_it_expires_at_the_broker(
    broker: ScriptedBroker, queue: MessageQueue, silence: Reply | None, flowing: ManualClock
) -> None:
    """After 30 s, of the broker's 60 s. When it responds again, the lock is still ours, and we continue."""
    await broker.store(queue, *[b"x"] * 5)
    holding, answering = Holding(), True

    def lock(command: Any) -> Reply | None:
        return broker.lock(command) if answering else silence

    broker.peer.on(RequestCode.LOCK_BATCH_MQ, lock)
    async with member(broker.peer.address, holding, clock=flowing, **ORDERLY) as one:
        await eventually(lambda: holding.batch is not None, "the handler has the batch")
        answering = False
        with capture_logs() as logs:
            await eventually(lambda: holding.is_reported, "the lock is lost")
            await holding.let_go(one)
            await eventually(lambda: "queue.lock_lost" in [entry["event"] for entry in logs], "it is logged")
        pulls = len(broker.pulled_offsets(queue))
        await flowing.sleep(5)
        assert holding.seen == [0, 1, 2]
        assert len(broker.pulled_offsets(queue)) == pulls
        answering = True
        await broker.committed(GROUP, queue, 5)
    assert holding.seen == [0, 1, 2, 3, 4]


async def test_a_late_hand_over_revokes_the_batch_and_waits_for_its_handler(
    broker: ScriptedBroker, flowing: ManualClock
) -> None:
    """The lock is kept meanwhile, so late messages are committed, and not handled a second time."""
    queues = broker.create_topic(TOPIC, 2)
    for queue in queues:
        await broker.store(queue, *[b"x"] * 5)
    seen, release, batches = list[tuple[int, int]](), asyncio.Event(), dict[int, Batch]()

    async def handle(batch: Batch) -> None:
        seen.append((batch[0].queue_id, batch[0].queue_offset))
        if batch[0].queue_offset == 2 and not release.is_set():
            batches[batch[0].queue_id] = batch
            await release.wait()

    options = {**ORDERLY, "queue_handover_timeout_seconds": 0.2}
    async with member(broker.peer.address, handle, clock=flowing, **options) as old:
        await eventually(lambda: len(batches) == 2, "both queues are at work")
        async with member(broker.peer.address, handle, clock=flowing, **options) as new:
            await eventually(lambda: any(batch.revoked for batch in batches.values()), "a batch is revoked")
            [moving] = [number for number, batch in batches.items() if batch.revoked]
            await flowing.sleep(5)
            assert broker.locks[GROUP, queues[moving]] == old.client.client_id
            release.set()
            for queue in queues:
                await broker.committed(GROUP, queue, 5)
            assert len(new.owned()) == len(old.owned()) == 1
            assert old.topic().duplicates == new.topic().duplicates == {}
    assert sorted(seen) == [(number, offset) for number in range(2) for offset in range(5)]


async def test_a_hanging_handler_delays_a_hand_over_no_longer_than_in_java(
    broker: ScriptedBroker, flowing: ManualClock
) -> None:
    """Then the queue is unlocked anyway, nothing is committed, and the duplicate is counted."""
    queues = broker.create_topic(TOPIC, 2)
    for queue in queues:
        await broker.store(queue, b"x")
    release, begun = asyncio.Event(), list[int]()

    async def hang(batch: Batch) -> None:
        begun.append(batch[0].queue_id)
        await release.wait()

    options = {**ORDERLY, "queue_handover_timeout_seconds": 0.1}
    async with member(broker.peer.address, hang, clock=flowing, **options) as old:
        await eventually(lambda: len(begun) == 2, "both queues are at work")
        async with member(broker.peer.address, hang, clock=flowing, **options) as new:
            await eventually(lambda: len(begun) == 3, "the new owner is at work")
            assert len(new.owned()) == 1
            assert not [offset for _, offset in broker.commits if offset]
            release.set()
            await eventually(lambda: old.topic().duplicates == {"handed_over": 1}, "it is counted")


@pytest.mark.parametrize("is_async", [True, False])
async def test_at_a_stop_the_lock_is_kept_if_a_handler_may_still_run(
    broker: ScriptedBroker, queue: MessageQueue, is_async: bool, flowing: ManualClock
) -> None:
    """A cancelled handler has ended. A thread may still run, so its lock is left to expire."""
    await broker.store(queue, b"x")
    begun, release = threading.Event(), threading.Event()

    async def handle(batch: Batch) -> None:
        begun.set()
        await asyncio.Event().wait()

    def handle_in_thread(batch: Batch) -> None:
        begun.set()
        release.wait(5)

    function: Callable[..., Any] = handle if is_async else handle_in_thread
    async with member(broker.peer.address, function, clock=flowing, is_async=is_async, **ORDERLY) as one:
        await eventually(begun.is_set, "it is at work")
        await one.stop(shutdown_timeout_seconds=0.05)
    release.set()
    codes = [request.code for request in broker.peer.requests]
    assert codes.index(RequestCode.UNREGISTER_CLIENT) > max(
        (i for i, code in enumerate(codes) if code == RequestCode.UNLOCK_BATCH_MQ), default=0
    )
    assert ((GROUP, queue) in broker.locks) == (not is_async)


async def test_a_lock_granted_during_its_release_is_unlocked(
    broker: ScriptedBroker, queue: MessageQueue, clock: ManualClock
) -> None:
    """A release during a lock request unlocks after the response, whatever the response is."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def lock(command: RemotingCommand) -> Reply:
        asked.set()
        await answer.wait()
        return broker.lock(command)

    broker.peer.on(RequestCode.LOCK_BATCH_MQ, lock)
    async with locking(broker, clock) as (_, locks):
        acquiring = asyncio.create_task(locks.acquire(queue, lambda: None))
        await asked.wait()
        acquiring.cancel()
        releasing = asyncio.create_task(locks.release(queue))
        await clock.advance(0.5)
        assert not broker.peer.got(RequestCode.UNLOCK_BATCH_MQ)
        answer.set()
        await releasing
        assert not locks.holds(queue)
        assert broker.locks == {}


async def test_a_broker_that_refuses_locks_is_logged_once(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """Requests continue, because its access control may change. Nothing is pulled without the lock."""
    holding = Holding()
    await broker.store(queue, b"x")
    broker.peer.on(RequestCode.LOCK_BATCH_MQ, Reply(ResponseCode.NO_PERMISSION, "no sub permission on the group"))
    with capture_logs() as logs:
        async with member(broker.peer.address, holding, clock=flowing, **ORDERLY):
            await eventually(lambda: len(broker.peer.got(RequestCode.LOCK_BATCH_MQ)) >= 2, "requests continue")
            assert not broker.pulls
            broker.peer.on(RequestCode.LOCK_BATCH_MQ, broker.lock)
            await broker.committed(GROUP, queue, 1)
            broker.peer.on(RequestCode.LOCK_BATCH_MQ, Reply(ResponseCode.NO_PERMISSION, "no sub permission"))
            await eventually(lambda: sum(e["event"] == "ownership.lock_refused" for e in logs) == 2, "logged again")


async def test_a_lock_is_lost_after_a_suspension_of_the_machine(
    broker: ScriptedBroker, flowing: ManualClock, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine's clock stopped, the broker's did not, so another member may own the queue."""
    async with locking(broker, flowing) as (_, locks):
        await locks.acquire(queue, lambda: None)
        assert locks.holds(queue)
        monkeypatch.setattr("rmqd.consumer.rebalance.queue_lock.suspended_seconds", lambda: 3600.0)
        assert not locks.holds(queue)


async def test_a_lock_is_invalid_until_it_is_granted_over_the_next_connection(
    broker: ScriptedBroker, flowing: ManualClock, queue: MessageQueue
) -> None:
    """The broker may have restarted. Once the lock is granted again, the same lease is valid."""
    told = asyncio.Event()
    async with locking(broker, flowing) as (client, locks):
        await locks.acquire(queue, told.set)
        lease = locks.lease(queue)
        broker.peer.on(RequestCode.LOCK_BATCH_MQ, Reply(ResponseCode.SYSTEM_BUSY, "starting"))
        broker.peer.cut()
        await told.wait()
        assert lease is not None
        assert not lease.valid
        assert locks.lease(queue) is None
        broker.peer.on(RequestCode.LOCK_BATCH_MQ, broker.lock)
        await client.remoting.connection(broker.peer.address)
        await locks.acquire(queue, told.set)
        assert locks.lease(queue) is lease
        assert lease.valid


async def test_locks_granted_before_a_restart_of_the_broker_are_requested_again(
    broker: ScriptedBroker, flowing: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locks of many queues need several requests. The broker restarts between two of them."""
    queues, restarts = broker.create_topic(TOPIC, QUEUES_PER_REQUEST + 1), [True]
    async with locking(broker, flowing) as (client, locks):

        async def ask(*arguments: Any) -> frozenset[MessageQueue]:
            granted = await lock_batch(*arguments)
            if restarts and len(granted) == QUEUES_PER_REQUEST:
                restarts.clear()
                broker.locks.clear()
                broker.peer.cut()
                await eventually(lambda: client.remoting.connected(broker.peer.address) is None, "it is noticed")
            return granted

        monkeypatch.setattr("rmqd.consumer.rebalance.queue_lock.lock_batch", ask)
        await asyncio.gather(*(locks.acquire(queue, lambda: None) for queue in queues))
        assert not restarts
        assert broker.locks.keys() == {(GROUP, queue) for queue in queues}


async def test_a_waiting_member_lets_the_owner_lock_first_after_a_broker_restart(
    broker: ScriptedBroker, clock: ManualClock, queue: MessageQueue
) -> None:
    """A restarted broker has no locks, but the owner's handler may still be at work."""
    broker.locks[GROUP, queue] = "owner"
    async with locking(broker, clock) as (client, locks):
        waiting = asyncio.create_task(locks.acquire(queue, lambda: None))
        await broker.peer.received(RequestCode.LOCK_BATCH_MQ)
        await clock.advance(0.1)  # the response arrives
        broker.locks.clear()
        broker.peer.cut()
        await eventually(lambda: client.remoting.connected(broker.peer.address) is None, "the connection is lost")
        asked = len(broker.peer.got(RequestCode.LOCK_BATCH_MQ))
        await clock.advance(3 * SLOW_REQUEST_INTERVAL_SECONDS)
        assert client.remoting.connected(broker.peer.address) is None  # a request for the lock would connect
        await client.remoting.connection(broker.peer.address)
        await clock.advance(BROKER_RESTART_SECONDS - 1)
        assert len(broker.peer.got(RequestCode.LOCK_BATCH_MQ)) == asked
        await clock.until(waiting.done, "it has the lock")


async def test_a_waiting_member_lets_the_owner_lock_first_at_a_new_master(
    broker: ScriptedBroker, clock: ManualClock, queue: MessageQueue
) -> None:
    """A slave that becomes the master has no locks either, and the connection to it is old."""
    broker.locks[GROUP, queue] = "owner"
    async with Peer() as replica, locking(broker, clock) as (client, locks):

        async def make_master(master: Peer, slave: Peer) -> None:
            broker._by_topic[TOPIC] = route_of({broker.name: {0: master.address, 1: slave.address}}, 1)
            await client.routes.refresh(TOPIC)

        broker.serve(replica, 1, with_master=True)
        await client.remoting.connection(replica.address)
        await clock.advance(BROKER_RESTART_SECONDS)
        waiting = asyncio.create_task(locks.acquire(queue, lambda: None))
        await broker.peer.received(RequestCode.LOCK_BATCH_MQ)
        await clock.advance(1)
        await make_master(replica, broker.peer)
        await clock.advance(1)
        await make_master(broker.peer, replica)  # the old master was away for a moment only
        await clock.advance(3 * BROKER_RESTART_SECONDS)
        broker.locks.clear()
        await make_master(replica, broker.peer)
        await clock.advance(BROKER_RESTART_SECONDS - 1)
        assert not replica.got(RequestCode.LOCK_BATCH_MQ)
        await clock.until(waiting.done, "it has the lock")
