"""Missing members of a group: the member lists of several brokers, which change at different times."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.rebalance.membership import MEMBER_RETURN_SECONDS, MISSING_MEMBER_SECONDS
from rmqd.consumer.rebalance.ownership import QueueOwnership
from rmqd.consumer.rebalance.queue_lock import BrokerLocks
from rmqd.errors import RmqdError
from rmqd.wire.bodies.group_bodies import (
    ConsumerRunningInfo,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProcessQueueInfo,
)
from rmqd.wire.bodies.stats_bodies import Connection, ConsumerConnection
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Peer, Reply, route_of, routes
from tests.client.running import running
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.waiting import eventually

NEVER = float("inf")


class Case:
    """One member's view of the others, with two brokers."""

    def __init__(self, first: Peer, second: Peer, client: ClientInstance, clock: ManualClock) -> None:
        self.first = first
        self.second = second
        self.client = client
        self.clock = clock
        self.ownership = QueueOwnership(client, GROUP, 5.0, client.clock)
        for peer in (first, second):
            self.lists(peer)

    def lists(self, peer: Peer, *others: str, us: bool = True) -> list[str]:
        """Let a broker list these members, and us, from now on."""
        client_ids = [*([self.client.client_id] if us else []), *others]
        peer.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, Reply(body=json.dumps({"consumerIdList": client_ids}).encode()))
        return client_ids

    async def listed(self, peer: Peer, *others: str) -> None:
        """A broker listed these members, and us, in a rebalance."""
        await self.ownership.on_member_list(peer.address, self.lists(peer, *others))

    async def broken(self, after_seconds: float = MISSING_MEMBER_SECONDS) -> dict[str, set[str]]:
        """Return the names of the brokers at which each member's locks are broken after this time."""
        self.clock.turn(after_seconds)
        await self.ownership.break_locks(TOPIC, self.client.routes.queues(TOPIC))
        found = dict[str, set[str]]()
        for name, peer in (("a", self.first), ("b", self.second)):
            for request in peer.got(RequestCode.UNLOCK_BATCH_MQ):
                body = LockBatchRequestBody.from_json(request.body)
                assert body.consumer_group == f"{GROUP}-rmqd-owner"
                assert {(queue.broker_name, queue.queue_id) for queue in body.queues} == {(name, 0), (name, 1)}
                found.setdefault(body.client_id, set()).add(name)
            peer.requests.clear()
        return found


@pytest.fixture
async def case(clock: ManualClock) -> AsyncIterator[Case]:
    """Two brokers with two queues each. The first is also the name server. Connections to both exist."""
    async with Peer() as first, Peer() as second:
        route = route_of({"a": first.address, "b": second.address}, 2)
        first.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes({TOPIC: route}))
        client = ClientInstance(ClientOptions(nameservers=(first.address,)), clock=clock)
        await client.routes.lookup(TOPIC)
        await client.remoting.connection(second.address)
        clock.turn(MEMBER_RETURN_SECONDS)
        yield Case(first, second, client, clock)
        await client.remoting.close()


async def test_a_member_missing_in_every_list_is_gone(case: Case) -> None:
    """Its locks are broken once, at each broker, for all queues of the topic."""
    for peer in (case.first, case.second):
        await case.listed(peer, "other")
    assert await case.broken() == {}
    await case.listed(case.first)
    assert await case.broken() == {}, "the other broker still has it"
    await case.listed(case.second)
    assert await case.broken() == {"other": {"a", "b"}}
    assert await case.broken() == {}, "once is enough"


async def test_a_member_missing_in_one_list_is_searched_in_the_others(case: Case) -> None:
    """The last lists of the other brokers may be outdated."""
    for peer in (case.first, case.second):
        await case.listed(peer, "other")
        case.lists(peer)
    for _ in range(2):
        await case.listed(case.first)
        assert len(case.second.got(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) == 1
    assert case.first.got(RequestCode.GET_CONSUMER_LIST_BY_GROUP) == []


async def test_a_briefly_missing_member_keeps_its_locks(case: Case) -> None:
    """A broker removes a member whose connection was cut, until its next heartbeat."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    assert await case.broken(MISSING_MEMBER_SECONDS / 2) == {}
    await case.listed(case.first, "other")
    assert await case.broken() == {}
    await case.listed(case.first)
    assert await case.broken(MISSING_MEMBER_SECONDS / 2) == {}
    assert await case.broken(MISSING_MEMBER_SECONDS / 2) == {"other": {"a", "b"}}


async def test_a_notification_restarts_the_wait_for_a_missing_member(case: Case) -> None:
    """A member with an unstable connection may return and leave again without appearing in any list."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    for _ in range(3):
        assert await case.broken(MISSING_MEMBER_SECONDS * 0.6) == {}
        case.ownership.on_members_changed()
    assert await case.broken(MISSING_MEMBER_SECONDS * 0.6) == {}
    assert await case.broken(MISSING_MEMBER_SECONDS * 0.4) == {"other": {"a", "b"}}


async def test_a_member_that_returned_unnoticed_keeps_its_locks(case: Case) -> None:
    """The last list may be from the moment when the member was missing, so brokers are queried again."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    case.lists(case.first, "other")
    assert await case.broken() == {}


async def gone(case: Case) -> MessageQueue:
    """Return a queue of the first broker, whose lock is held by a member that no broker lists any more."""
    for peer in (case.first, case.second):
        peer.on(RequestCode.LOCK_BATCH_MQ, Reply(body=b'{"lockOKMQSet":[]}'))
        await case.listed(peer, "other")
    case.lists(case.second)
    await case.listed(case.first)
    return next(one for one in case.client.routes.queues(TOPIC) if one.broker_name == "a")


async def test_a_member_back_in_one_list_is_waited_for_if_other_lists_lack_it(case: Case) -> None:
    """It may have handlers at work. The other broker's last list may be from when the connections were cut."""
    queue = await gone(case)
    case.lists(case.second, "other")
    await case.listed(case.first, "other")
    await case.listed(case.first)
    acquiring = asyncio.create_task(case.ownership.acquire(queue, lambda: None))
    await case.clock.advance(MISSING_MEMBER_SECONDS + 0.5)
    assert not acquiring.done()
    await case.listed(case.second)
    await case.clock.advance(MISSING_MEMBER_SECONDS + 0.5)
    await eventually(acquiring.done, "no broker lists it any more")
    assert await acquiring


async def test_an_unreachable_broker_is_not_queried_for_missing_members(case: Case) -> None:
    """A member that is missing in the lists of the reachable brokers is not waited for."""
    queue = await gone(case)
    await case.second.down()
    with pytest.raises(RmqdError):
        await case.client.remoting.connection(case.second.address)
    acquiring = asyncio.create_task(case.ownership.acquire(queue, lambda: None))
    await case.clock.advance(MISSING_MEMBER_SECONDS + 0.5)
    await eventually(acquiring.done, "the lock is ignored")
    assert await acquiring


async def test_a_broker_that_may_have_lost_all_members_proves_nothing(case: Case) -> None:
    """It does not list us either, or our connection is so new that others' heartbeats may be missing."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    case.lists(case.first, us=False)
    assert await case.broken() == {"other": {"b"}}
    case.lists(case.first)
    for peer in (case.first, case.second):
        case.client.remoting.disconnect(peer.address, "they make new ones")
    assert await case.broken() == {}
    assert await case.broken(MEMBER_RETURN_SECONDS) == {"other": {"a", "b"}}


async def test_a_new_member_in_one_list_is_not_missing_in_the_others(case: Case) -> None:
    """Lists of different brokers are not compared."""
    await case.listed(case.first, "new")
    await case.listed(case.second)
    assert await case.broken() == {}


async def test_locks_of_a_member_that_returns_and_leaves_again_are_broken_again(case: Case) -> None:
    await case.listed(case.first, "other")
    await case.listed(case.first)
    assert await case.broken() == {"other": {"a", "b"}}
    await case.listed(case.first, "other")
    await case.listed(case.first)
    assert await case.broken() == {"other": {"a", "b"}}


async def test_an_unlock_is_repeated_while_a_broker_does_not_respond(case: Case) -> None:
    """The locks at that broker may still exist."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    await case.second.down()
    assert await case.broken() == {"other": {"a"}}
    assert await case.broken() == {"other": {"a"}}


async def test_a_gone_member_is_forgotten_once_its_locks_have_expired(case: Case) -> None:
    """Locks expire after a minute."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    case.clock.turn(71)
    await case.listed(case.first)
    assert await case.broken() == {}


async def test_locks_of_a_gone_member_are_broken_while_another_may_return(case: Case) -> None:
    """The other member keeps its locks for a moment, and meanwhile no broker is queried for it."""
    await case.listed(case.first, "gone", "other")
    await case.listed(case.first, "other")
    assert await case.broken(MISSING_MEMBER_SECONDS) == {"gone": {"a", "b"}}
    await case.listed(case.first, "gone", "other")
    await case.listed(case.first, "other")
    case.clock.turn(MISSING_MEMBER_SECONDS)
    await case.listed(case.first)
    assert await case.broken(MISSING_MEMBER_SECONDS / 2) == {"gone": {"a", "b"}}
    await case.ownership.break_locks(TOPIC, case.client.routes.queues(TOPIC))
    for peer in (case.first, case.second):
        assert peer.got(RequestCode.GET_CONSUMER_LIST_BY_GROUP) == []
    assert await case.broken(MISSING_MEMBER_SECONDS / 2) == {"other": {"a", "b"}}


async def test_a_refused_unlock_is_repeated(case: Case) -> None:
    await case.listed(case.first, "other")
    await case.listed(case.first)
    case.second.on(RequestCode.UNLOCK_BATCH_MQ, Reply(ResponseCode.SYSTEM_ERROR, "later"))
    assert await case.broken() == {"other": {"a", "b"}}
    case.second.on(RequestCode.UNLOCK_BATCH_MQ, Reply())
    assert await case.broken() == {"other": {"a", "b"}}
    assert await case.broken() == {}


async def test_locks_are_not_broken_at_a_broker_that_returns_no_list(case: Case) -> None:
    """A member that is missing in other lists may still be known to this broker."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    case.second.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, Reply(ResponseCode.SYSTEM_ERROR, "later"))
    assert await case.broken() == {"other": {"a"}}


async def test_a_wide_group_locks_and_unlocks_its_queues_together(case: Case) -> None:
    """A request for each queue would be too slow: a lock has a deadline of a second, a hand-over of a few."""

    def grant(command: RemotingCommand) -> Reply:
        return Reply(
            body=LockBatchResponseBody(frozenset(LockBatchRequestBody.from_json(command.body).queues)).to_json()
        )

    case.first.on(RequestCode.LOCK_BATCH_MQ, grant)
    queues = [MessageQueue(TOPIC, "a", number) for number in range(100)]
    assert all(await asyncio.gather(*(case.ownership.acquire(queue, lambda: None) for queue in queues)))
    await asyncio.gather(*map(case.ownership.release, queues))
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        assert len(case.first.got(code)) <= 3


async def test_one_broker_with_a_new_connection_may_have_lost_locks(case: Case) -> None:
    """A broker without an address cannot be asked for anything."""
    locks = BrokerLocks(case.client, GROUP)
    for name, peer in (("a", case.first), ("b", case.second)):
        queue = MessageQueue(TOPIC, name, 0)
        peer.on(RequestCode.LOCK_BATCH_MQ, Reply(body=LockBatchResponseBody(frozenset({queue})).to_json()))
        assert await locks.lock(name, [queue]) == frozenset({queue})
    assert not locks.may_any_have_lost_locks()
    case.second.cut()
    await eventually(lambda: locks.connection("b") is None, "the connection is lost")
    assert not locks.may_any_have_lost_locks()
    await case.client.remoting.connection(case.second.address)
    assert locks.may_any_have_lost_locks()
    assert not await locks.unlock("c", [MessageQueue(TOPIC, "c", 0)])
    assert await locks.lock("c", [MessageQueue(TOPIC, "c", 0)]) is None


@pytest.mark.parametrize("seconds", [0.0, 2.0, 60.0, NEVER])
async def test_a_java_owner_is_waited_for_until_it_has_released_the_queue(case: Case, seconds: float) -> None:
    """Its running info lists the queue until its last commit is sent. rmqd members are not queried: they have locks."""
    queue, since = MessageQueue(TOPIC, "a", 0), case.clock.now
    languages = {"java": "JAVA", "rmqd": "PYTHON"}
    view = ConsumerConnection(tuple(Connection(name, "", language) for name, language in languages.items()), {})

    def tell(command: RemotingCommand) -> Reply | None:
        assert command.ext_fields["clientId"] == "java"
        if seconds == NEVER:
            return None
        has = {queue: ProcessQueueInfo()} if case.clock.now < since + seconds else {}
        return Reply(body=ConsumerRunningInfo({}, mq_table=has).to_json())

    case.first.on(RequestCode.LOCK_BATCH_MQ, Reply(body=LockBatchResponseBody(frozenset({queue})).to_json()))
    case.first.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, Reply(body=view.to_json()))
    case.first.on(RequestCode.GET_CONSUMER_RUNNING_INFO, tell)
    await case.listed(case.first, *languages)
    acquiring = asyncio.create_task(case.ownership.acquire(queue, lambda: None))
    await case.clock.until(acquiring.done, "it is released, or the timeout is over")
    assert case.clock.now - since >= min(seconds, 5.0)
    assert (await acquiring, case.ownership.timeouts) == ((True, 0) if seconds < 5.0 else (False, 1))
    if seconds == 2.0:
        assert len(case.first.got(RequestCode.GET_CONSUMER_RUNNING_INFO)) == pytest.approx(seconds / 0.25, abs=1)
    await case.ownership.close(calls_left=False)
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("other-owners:")]


async def test_locks_of_a_member_that_may_return_are_broken_later(case: Case) -> None:
    """Without a further rebalance."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    assert await case.broken(MISSING_MEMBER_SECONDS / 2) == {}
    async with running(case.ownership.run()):
        await case.clock.until(lambda: case.second.got(RequestCode.UNLOCK_BATCH_MQ), "they are broken", 10.0)
    assert await case.broken() == {"other": {"a", "b"}}
    assert await case.broken() == {}
