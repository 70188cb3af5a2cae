"""Ownership locks, which show other members that a queue has an owner: waits and renewals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.routing.route_table import REFRESH_INTERVAL_SECONDS
from rmqd.codes import RequestCode
from rmqd.consumer.rebalance.membership import MEMBER_RETURN_SECONDS
from rmqd.consumer.rebalance.ownership import LOCK_NAME_SUFFIX, QueueOwnership
from rmqd.consumer.rebalance.queue_lock import QUEUES_PER_REQUEST, RENEW_INTERVAL_SECONDS, BrokerLocks
from rmqd.errors import RmqdError
from rmqd.wire.bodies.group_bodies import LockBatchRequestBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.client.running import running
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

NAME = GROUP + LOCK_NAME_SUFFIX


class Case:
    """A member with a hand-over timeout of 5 s, at a broker with two queues whose locks others may hold."""

    def __init__(self, broker: ScriptedBroker, client: ClientInstance, clock: ManualClock) -> None:
        self.broker = broker
        self.client = client
        self.clock = clock
        self.one, self.two = sorted(client.routes.queues(TOPIC), key=lambda queue: queue.queue_id)
        self.ownership = QueueOwnership(client, GROUP, 5.0, clock)
        self.lost: list[MessageQueue] = []

    def held_by_other(self, *queues: MessageQueue) -> None:
        for queue in queues:
            self.broker.locks[NAME, queue] = "other"

    def freed(self, *queues: MessageQueue) -> None:
        for queue in queues:
            del self.broker.locks[NAME, queue]

    def ours(self) -> set[MessageQueue]:
        """The queues whose locks this member has."""
        return {
            queue for (name, queue), who in self.broker.locks.items() if (name, who) == (NAME, self.client.client_id)
        }

    async def listed(self, *others: str) -> None:
        """The broker lists us and others."""
        await self.ownership.on_member_list(self.broker.peer.address, [self.client.client_id, *others])

    def acquire(self, queue: MessageQueue, max_notice_delay_seconds: float = 0.0) -> asyncio.Task[bool]:
        return asyncio.create_task(self.ownership.acquire(queue, lambda: None, max_notice_delay_seconds))

    def asked(self) -> list[set[MessageQueue]]:
        """The locks that were requested since the last call."""
        found = [
            set(LockBatchRequestBody.from_json(request.body).queues)
            for request in self.broker.peer.got(RequestCode.LOCK_BATCH_MQ)
        ]
        self.broker.peer.requests.clear()
        return found


@pytest.fixture
async def case(broker: ScriptedBroker, clock: ManualClock) -> AsyncIterator[Case]:
    """A member whose connection to the broker has existed for long."""
    broker.create_topic(TOPIC, 2)
    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)), clock=clock)
    await client.routes.lookup(TOPIC)
    clock.turn(MEMBER_RETURN_SECONDS)
    yield Case(broker, client, clock)
    await client.remoting.close()


async def test_a_free_queue_is_locked_at_once_until_it_is_released(case: Case) -> None:
    """After the release its lock is not renewed any more."""
    assert await case.ownership.acquire(case.one, lambda: None)
    assert await case.ownership.acquire(case.two, lambda: None)
    assert case.ours() == {case.one, case.two}
    await case.ownership.release(case.one)
    assert case.ours() == {case.two}
    case.asked()
    async with running(case.ownership.run()):
        await case.clock.advance(RENEW_INTERVAL_SECONDS + 1)
    assert case.asked() == [{case.two}]
    await case.ownership.close(calls_left=True)
    assert case.ours() == set()


async def test_a_queue_of_another_member_is_acquired_after_its_release(case: Case) -> None:
    await case.listed("other")
    case.held_by_other(case.one)
    acquiring = case.acquire(case.one)
    await case.clock.advance(3)
    assert not acquiring.done()
    assert len(case.asked()) <= 61, "twenty times a second"
    case.freed(case.one)
    with capture_logs() as logs:
        await case.clock.advance(0.1)
        await eventually(acquiring.done, "it is acquired")
    assert await acquiring
    assert (case.ours(), case.ownership.timeouts) == ({case.one}, 0)
    assert "queue.handed_over" in [line["event"] for line in logs]
    assert await case.ownership.acquire(case.two, lambda: None)
    assert case.ownership._waiting == 0


@pytest.mark.parametrize("max_notice_delay_seconds", [0.0, 3.0])
async def test_a_queue_is_acquired_without_its_lock_after_the_timeout(
    case: Case, max_notice_delay_seconds: float
) -> None:
    """It is locked as soon as possible, so that the next owner waits for us."""
    await case.listed("other")
    case.held_by_other(case.one)
    acquiring = case.acquire(case.one, max_notice_delay_seconds)
    await case.clock.advance(4.9 + max_notice_delay_seconds)
    assert not acquiring.done()
    await case.clock.advance(0.2)
    await eventually(acquiring.done, "it is acquired")
    assert not await acquiring
    assert case.ownership.timeouts == 1
    async with running(case.ownership.run()):
        await case.clock.advance(3)
        assert case.ours() == set()
        case.freed(case.one)
        await case.clock.advance(1.1)
        await eventually(lambda: case.ours() == {case.one}, "it is locked")
        case.asked()
        await case.clock.advance(5)
        assert case.asked() == [], "no requests until the renewal"


async def test_the_wait_is_longer_after_the_topics_queues_have_changed(case: Case) -> None:
    """An owner with the old route does not know yet that it must release its queue."""
    await case.listed("other")
    case.held_by_other(case.one)
    case.client.routes.watch(TOPIC)
    case.broker.create_topic(TOPIC, 3)
    await case.client.routes.refresh(TOPIC)
    acquiring = case.acquire(case.one)
    await case.clock.advance(REFRESH_INTERVAL_SECONDS + 4.9)
    assert not acquiring.done()
    await case.clock.advance(0.2)
    await eventually(acquiring.done, "it is acquired")
    assert not await acquiring


async def test_a_member_that_is_alone_waits_only_a_second(case: Case) -> None:
    """No broker lists the lock's holder. After a second, in which it could return, its lock is ignored."""
    body = json.dumps({"consumerIdList": [case.client.client_id]}).encode()
    case.broker.peer.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, Reply(body=body))
    await case.listed()
    case.held_by_other(case.one)
    acquiring = case.acquire(case.one)
    await case.clock.advance(0.9)
    assert not acquiring.done()
    await case.clock.advance(0.2)
    await eventually(acquiring.done, "it is acquired")
    assert await acquiring
    assert case.ownership.timeouts == 0


async def test_many_waiting_queues_are_requested_less_often(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later, a single queue is requested often again."""
    monkeypatch.setattr("rmqd.consumer.rebalance.ownership.MAX_POLLED_QUEUES", 1)
    await case.listed("other")
    queues = [MessageQueue(TOPIC, case.one.broker_name, number) for number in range(2, 6)]
    case.held_by_other(case.one, *queues)
    waiting = [case.acquire(queue) for queue in queues]
    await case.clock.advance(1)
    case.asked()
    await case.clock.advance(2)
    assert 8 <= sum(queues[0] in asked for asked in case.asked()) <= 12, "five times a second"
    case.freed(*queues)
    await case.clock.advance(1)
    assert all(await asyncio.gather(*waiting))
    acquiring = case.acquire(case.one)
    case.asked()
    await case.clock.advance(2)
    assert len(case.asked()) >= 35, "twenty times a second"
    case.freed(case.one)
    await case.clock.advance(0.1)
    assert await acquiring


async def test_a_member_missing_before_our_connection_broke_is_waited_for(case: Case) -> None:
    """It may have returned unnoticed. The wait starts when the broker is reachable again."""
    await case.listed("other")
    await case.listed()
    case.held_by_other(case.one)
    await case.broker.peer.down()
    with pytest.raises(RmqdError):
        await case.client.remoting.connection(case.broker.peer.address)
    acquiring = case.acquire(case.one)
    await case.clock.advance(10)
    assert not acquiring.done()
    body = json.dumps({"consumerIdList": [case.client.client_id, "other"]}).encode()
    case.broker.peer.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, Reply(body=body))
    await case.broker.peer.listen()
    await case.clock.advance(case.client.remoting.breakers.remaining_pause_seconds(case.broker.peer.address))
    await case.client.remoting.connection(case.broker.peer.address)
    await case.clock.advance(1)
    assert not acquiring.done()
    case.freed(case.one)
    await case.clock.advance(0.1)
    await eventually(acquiring.done, "it is acquired")
    assert await acquiring
    assert case.ownership.timeouts == 0


async def test_locks_are_renewed_before_they_expire_and_not_more_often(case: Case) -> None:
    for queue in (case.one, case.two):
        await case.ownership.acquire(queue, lambda: None)
    case.asked()
    async with running(case.ownership.run()):
        for _ in range(2):
            await case.clock.advance(RENEW_INTERVAL_SECONDS - 2)
            assert case.asked() == []
            await case.clock.advance(2)
            await eventually(lambda: case.asked() == [{case.one, case.two}], "they are renewed")


async def test_a_lock_lost_to_another_member_is_requested_every_second(case: Case) -> None:
    """For example after this process was stalled until the lock expired."""
    for queue in (case.one, case.two):
        await case.ownership.acquire(queue, lambda: None)
    async with running(case.ownership.run()):
        await case.clock.advance(RENEW_INTERVAL_SECONDS - 2)
        case.held_by_other(case.one)
        await case.clock.advance(3)
        case.asked()
        await case.clock.advance(2)
        assert case.asked() == [{case.one}] * 2
        case.freed(case.one)
        await case.clock.advance(1.1)
        await eventually(lambda: case.ours() == {case.one, case.two}, "it is ours again")


async def test_locks_are_requested_again_after_a_broker_restart(case: Case) -> None:
    await case.ownership.acquire(case.one, lambda: None)
    async with running(case.ownership.run()):
        await case.clock.advance(1)
        await case.broker.peer.down()
        case.broker.locks.clear()
        await case.broker.peer.listen()
        await case.client.remoting.connection(case.broker.peer.address)
        case.asked()
        await case.clock.advance(2)
        await eventually(lambda: case.ours() == {case.one}, "it is ours again")


async def test_an_ownership_lock_gives_no_grace_period(case: Case) -> None:
    """The lock only delays a new owner. The rebalance decides who owns a queue."""
    assert (case.ownership.start_grace_period(case.one), case.ownership.holds(case.one)) == (0.0, True)


async def test_a_queue_acquired_again_without_its_lock_is_locked_when_possible(case: Case) -> None:
    """The lock before its release does not count."""
    await case.listed("other")
    await case.ownership.acquire(case.one, lambda: None)
    await case.ownership.release(case.one)
    case.held_by_other(case.one)
    acquiring = case.acquire(case.one)
    await case.clock.advance(5.1)
    await eventually(acquiring.done, "it is acquired")
    assert not await acquiring
    case.freed(case.one)
    async with running(case.ownership.run()):
        await case.clock.advance(2.1)
        await eventually(lambda: case.ours() == {case.one}, "it is locked")


async def test_a_lock_granted_during_the_release_of_its_queue_does_not_count_later(case: Case) -> None:
    """One request is for both queues, and `two` is released before the response. Then another member owns it."""
    await case.listed("other")
    may_answer = asyncio.Event()

    async def lock(command: RemotingCommand) -> Reply:
        await may_answer.wait()
        return case.broker.lock(command)

    case.broker.peer.on(RequestCode.LOCK_BATCH_MQ, lock)
    acquiring = [case.acquire(queue) for queue in (case.one, case.two)]
    await eventually(lambda: case.broker.peer.got(RequestCode.LOCK_BATCH_MQ), "the locks are requested")
    acquiring[1].cancel()
    release = asyncio.create_task(case.ownership.release(case.two))
    await asyncio.sleep(0)
    may_answer.set()
    await asyncio.gather(acquiring[0], release)
    assert case.ours() == {case.one}
    case.held_by_other(case.two)
    again = case.acquire(case.two)
    await case.clock.advance(4.9)
    assert not again.done()
    await case.clock.advance(0.2)
    assert not await again


@pytest.mark.parametrize("is_renewal", [False, True])
async def test_a_release_during_a_lock_request_unlocks_after_the_response(case: Case, *, is_renewal: bool) -> None:
    """The broker may execute the requests in any order, and the next owner would wait for the lock."""
    answer = asyncio.Event()
    if is_renewal:
        await case.ownership.acquire(case.one, lambda: None)
        case.asked()

    async def lock(command: RemotingCommand) -> Reply:
        await answer.wait()
        return case.broker.lock(command)

    case.broker.peer.on(RequestCode.LOCK_BATCH_MQ, lock)
    asking = asyncio.create_task(case.ownership.run()) if is_renewal else case.acquire(case.one)
    await case.clock.advance(0)
    if is_renewal:
        case.clock.turn(RENEW_INTERVAL_SECONDS)
    await case.broker.peer.received(RequestCode.LOCK_BATCH_MQ)
    asking.cancel()
    releasing = asyncio.create_task(case.ownership.release(case.one))
    await case.clock.advance(0.5)
    assert not case.broker.peer.got(RequestCode.UNLOCK_BATCH_MQ)
    answer.set()
    await releasing
    assert case.ours() == set()


async def test_a_wide_group_divides_its_locks_into_several_requests(case: Case) -> None:
    """The response for thousands of queues would arrive after the deadline of a second."""
    queues = [MessageQueue(TOPIC, case.one.broker_name, number) for number in range(2 * QUEUES_PER_REQUEST + 1)]
    locks = BrokerLocks(case.client, NAME)
    assert await locks.lock(case.one.broker_name, queues) == frozenset(queues)
    assert case.ours() == set(queues)
    assert await locks.unlock(case.one.broker_name, queues)
    assert not case.ours()
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        asked = [LockBatchRequestBody.from_json(request.body).queues for request in case.broker.peer.got(code)]
        assert [len(some) for some in asked] == [QUEUES_PER_REQUEST, QUEUES_PER_REQUEST, 1]
