"""Timing of an orderly group's locks: requests, expiry and release."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.rebalance.queue_lock import RENEW_INTERVAL_SECONDS, QueueLock
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.client.running import running
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually


class Case:
    """One member of an orderly group, on a broker with two queues."""

    def __init__(self, broker: ScriptedBroker, client: ClientInstance, clock: ManualClock) -> None:
        self.broker = broker
        self.client = client
        self.clock = clock
        self.one, self.two = sorted(client.routes.queues(TOPIC), key=lambda queue: queue.queue_id)
        self.locks = QueueLock(client, GROUP, clock)
        self.lost: list[MessageQueue] = []

    async def acquired(self, queue: MessageQueue) -> None:
        """Acquire the free lock of a queue."""
        assert await self.locks.acquire(queue, lambda: self.lost.append(queue))

    def requests(self) -> int:
        """The number of lock requests since the last call."""
        asked = len(self.broker.peer.got(RequestCode.LOCK_BATCH_MQ))
        self.broker.peer.requests.clear()
        return asked


@pytest.fixture
async def case(broker: ScriptedBroker, clock: ManualClock) -> AsyncIterator[Case]:
    """A member whose locks are renewed in the background."""
    broker.create_topic(TOPIC, 2)
    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)), clock=clock)
    await client.routes.lookup(TOPIC)
    one = Case(broker, client, clock)
    async with running(one.locks.run()):
        yield one
    await client.remoting.close()


async def test_a_lock_is_valid_for_half_a_minute_without_a_response(case: Case) -> None:
    """The broker's minute is not over then. The queue's owner is notified once."""
    await case.acquired(case.one)
    lease = case.locks.lease(case.one)
    assert lease is not None
    case.broker.peer.on(RequestCode.LOCK_BATCH_MQ, Reply(ResponseCode.SYSTEM_BUSY, "later"))
    await case.clock.advance(29.5)
    assert (case.locks.holds(case.one), lease.valid, case.lost) == (True, True, [])
    await case.clock.advance(0.6)
    assert (case.locks.holds(case.one), lease.valid, case.locks.lease(case.one)) == (False, False, None)
    await case.clock.advance(3)
    assert case.lost == [case.one]


async def test_locks_are_renewed_before_they_expire(case: Case) -> None:
    """All in one request, and not more often."""
    for queue in (case.one, case.two):
        await case.acquired(queue)
    case.requests()
    await case.clock.advance(RENEW_INTERVAL_SECONDS - 1.5)
    assert case.requests() == 0
    await case.clock.advance(2.5)
    await eventually(lambda: case.requests() == 1, "they are renewed")
    await case.clock.advance(RENEW_INTERVAL_SECONDS + 2)
    assert (case.locks.holds(case.one), case.locks.holds(case.two), case.lost) == (True, True, [])
    assert case.requests() <= 2


async def test_another_members_lock_is_requested_often_and_later_less_often(case: Case) -> None:
    """Five times a second for twenty seconds, then every second. It is acquired soon after its release."""
    case.broker.locks[GROUP, case.one] = "other"
    acquiring = asyncio.create_task(case.locks.acquire(case.one, lambda: None))
    await case.clock.advance(10)
    assert 47 <= case.requests() <= 52
    await case.clock.advance(8)
    case.requests()
    await case.clock.advance(4)
    assert 8 <= case.requests() <= 14
    await case.clock.advance(10)
    assert 9 <= case.requests() <= 11
    assert not acquiring.done()
    del case.broker.locks[GROUP, case.one]
    await case.clock.advance(1.1)
    await eventually(acquiring.done, "it is acquired")
    assert await acquiring
    assert case.locks.timeouts == 0


async def test_a_cancelled_wait_sends_no_more_requests(case: Case) -> None:
    case.broker.locks[GROUP, case.one] = "other"
    acquiring = asyncio.create_task(case.locks.acquire(case.one, lambda: None))
    await case.clock.advance(1)
    acquiring.cancel()
    await asyncio.wait((acquiring,))
    case.requests()
    await case.clock.advance(5)
    assert case.requests() == 0


async def test_a_late_release_keeps_the_lock_as_long_as_java(case: Case) -> None:
    """Twenty seconds, in which handlers see that they should end. Other queues have no grace period."""
    await case.acquired(case.one)
    lease = case.locks.lease(case.one)
    assert lease is not None
    assert case.locks.start_grace_period(case.two) == 0.0
    assert lease.valid
    assert case.locks.start_grace_period(case.one) == 20.0
    assert (lease.valid, lease.holds) == (False, True)
    case.broker.peer.on(RequestCode.LOCK_BATCH_MQ, Reply(ResponseCode.SYSTEM_BUSY, "later"))
    case.clock.turn(31)
    assert case.locks.start_grace_period(case.one) == 0.0


async def test_a_released_queue_is_unlocked_and_not_locked_again(case: Case) -> None:
    """Its previous lease is not valid for any batch."""
    await case.acquired(case.one)
    lease = case.locks.lease(case.one)
    assert lease is not None
    await case.locks.release(case.one)
    assert (lease.holds, case.locks.holds(case.one), case.broker.locks) == (False, False, {})
    case.requests()
    await case.clock.advance(RENEW_INTERVAL_SECONDS + 2)
    assert (case.requests(), case.lost) == (0, [])


@pytest.mark.parametrize("calls_left", [True, False])
async def test_close_releases_locks_unless_a_handler_may_still_run(case: Case, *, calls_left: bool) -> None:
    """In that case the locks expire."""
    for queue in (case.one, case.two):
        await case.acquired(queue)
    await case.locks.close(calls_left=calls_left)
    assert len(case.broker.locks) == (2 if calls_left else 0)


async def test_a_lock_that_is_refused_at_its_renewal_is_lost_at_once(case: Case) -> None:
    """Another member holds it. The lease becomes invalid, and the queue's owner is notified once."""
    await case.acquired(case.one)
    await case.acquired(case.two)
    lease = case.locks.lease(case.one)
    case.broker.locks[GROUP, case.one] = "other"
    await case.clock.advance(RENEW_INTERVAL_SECONDS + 1.1)
    await eventually(lambda: case.lost == [case.one], "the owner is notified")
    assert lease is not None
    assert not lease.valid
    assert (case.locks.holds(case.one), case.locks.holds(case.two)) == (False, True)


async def test_each_lost_connection_is_reported_once(case: Case) -> None:
    """However long the loss lasts. The next loss, after the lock was granted again, is reported too."""
    await case.acquired(case.one)
    for number in (1, 2):
        case.broker.peer.on(RequestCode.LOCK_BATCH_MQ, Reply(ResponseCode.SYSTEM_BUSY, "starting"))
        case.broker.peer.cut()
        await case.clock.until(lambda number=number: len(case.lost) == number, "it is reported")  # type: ignore[misc]
        await case.clock.advance(4)
        assert len(case.lost) == number
        case.broker.peer.on(RequestCode.LOCK_BATCH_MQ, case.broker.lock)
        await case.client.remoting.connection(case.broker.peer.address)
        await case.clock.until(lambda: case.locks.holds(case.one), "it is granted again")


async def test_locks_are_renewed_while_a_member_waits_for_another_lock(case: Case) -> None:
    await case.acquired(case.one)
    case.broker.locks[GROUP, case.two] = "other"
    acquiring = asyncio.create_task(case.locks.acquire(case.two, lambda: None))
    await case.clock.advance(33)
    assert (acquiring.done(), case.locks.holds(case.one), case.lost) == (False, True, [])
    acquiring.cancel()


async def test_a_long_wait_does_not_slow_the_requests_for_a_new_lock(case: Case) -> None:
    """A new lock is requested five times a second."""
    for queue in (case.one, case.two):
        case.broker.locks[GROUP, queue] = "other"
    first = asyncio.create_task(case.locks.acquire(case.one, lambda: None))
    await case.clock.advance(25)
    second = asyncio.create_task(case.locks.acquire(case.two, lambda: None))
    await case.clock.advance(1)
    case.requests()
    await case.clock.advance(4)
    assert case.requests() >= 15
    first.cancel()
    second.cancel()
