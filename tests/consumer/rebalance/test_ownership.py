"""Who of a group's members has gone: several brokers' lists, which learn of it at different times."""

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
        """Whose locks are broken then, by the broker's name."""
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
    """Two brokers with two queues each, the first of them also the name server, to which connections have stood."""
    async with Peer() as first, Peer() as second:
        route = route_of({"a": first.address, "b": second.address}, 2)
        first.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes({TOPIC: route}))
        client = ClientInstance(ClientOptions(nameservers=(first.address,)), clock=clock)
        await client.routes.lookup(TOPIC)
        await client.remoting.connection(second.address)
        clock.turn(MEMBER_RETURN_SECONDS)
        yield Case(first, second, client, clock)
        await client.remoting.close()


async def test_who_left_every_list_has_gone(case: Case) -> None:
    """Its locks are broken, once, on every broker, for all queues of the topic."""
    for peer in (case.first, case.second):
        await case.listed(peer, "other")
    assert await case.broken() == {}
    await case.listed(case.first)
    assert await case.broken() == {}, "the other broker still has it"
    await case.listed(case.second)
    assert await case.broken() == {"other": {"a", "b"}}
    assert await case.broken() == {}, "once is enough"


async def test_who_left_one_list_only_is_looked_for_in_the_others(case: Case) -> None:
    """What is remembered of them may be old."""
    for peer in (case.first, case.second):
        await case.listed(peer, "other")
        case.lists(peer)
    for _ in range(2):
        await case.listed(case.first)
        assert len(case.second.got(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) == 1
    assert case.first.got(RequestCode.GET_CONSUMER_LIST_BY_GROUP) == []


async def test_who_is_missing_for_a_moment_keeps_its_locks(case: Case) -> None:
    """A broker takes a member out whose connection was cut; its next heartbeat brings it back."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    assert await case.broken(MISSING_MEMBER_SECONDS / 2) == {}
    await case.listed(case.first, "other")
    assert await case.broken() == {}
    await case.listed(case.first)
    assert await case.broken(MISSING_MEMBER_SECONDS / 2) == {}
    assert await case.broken(MISSING_MEMBER_SECONDS / 2) == {"other": {"a", "b"}}


async def test_a_notice_starts_the_moment_anew(case: Case) -> None:
    """A member whose line flaps may be back, and gone again, without any list that shows it."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    for _ in range(3):
        assert await case.broken(MISSING_MEMBER_SECONDS * 0.6) == {}
        case.ownership.on_members_changed()
    assert await case.broken(MISSING_MEMBER_SECONDS * 0.6) == {}
    assert await case.broken(MISSING_MEMBER_SECONDS * 0.4) == {"other": {"a", "b"}}


async def test_who_is_back_keeps_its_locks_though_nobody_told(case: Case) -> None:
    """The last list that was read may be from the moment at which it was away: brokers are asked again."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    case.lists(case.first, "other")
    assert await case.broken() == {}


async def gone(case: Case) -> MessageQueue:
    """A queue of the first broker, whose lock another member has that no broker lists any more."""
    for peer in (case.first, case.second):
        peer.on(RequestCode.LOCK_BATCH_MQ, Reply(body=b'{"lockOKMQSet":[]}'))
        await case.listed(peer, "other")
    case.lists(case.second)
    await case.listed(case.first)
    return next(one for one in case.client.routes.queues(TOPIC) if one.broker_name == "a")


async def test_who_is_back_in_one_list_is_waited_for_though_its_broker_lists_it_late(case: Case) -> None:
    """It may have handlers at work. What is remembered of the other list is from when its lines were cut."""
    queue = await gone(case)
    case.lists(case.second, "other")
    await case.listed(case.first, "other")
    await case.listed(case.first)
    acquiring = asyncio.create_task(case.ownership.acquire(queue, lambda: None))
    await case.clock.advance(MISSING_MEMBER_SECONDS + 0.5)
    assert not acquiring.done()
    await case.listed(case.second)
    await case.clock.advance(MISSING_MEMBER_SECONDS + 0.5)
    await eventually(acquiring.done, "nobody lists it any more")
    assert await acquiring


async def test_a_broker_that_is_down_is_not_asked_who_is_gone(case: Case) -> None:
    """It lists nobody, and a member that is gone from the others' lists is waited for no longer."""
    queue = await gone(case)
    await case.second.down()
    with pytest.raises(RmqdError):
        await case.client.remoting.connection(case.second.address)
    acquiring = asyncio.create_task(case.ownership.acquire(queue, lambda: None))
    await case.clock.advance(MISSING_MEMBER_SECONDS + 0.5)
    await eventually(acquiring.done, "it is passed over")
    assert await acquiring


async def test_a_broker_that_may_have_lost_everybody_proves_nothing(case: Case) -> None:
    """It does not list us either, or our connection to it is younger than others' heartbeats may be late."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    case.lists(case.first, us=False)
    assert await case.broken() == {"other": {"b"}}
    case.lists(case.first)
    for peer in (case.first, case.second):
        case.client.remoting.disconnect(peer.address, "they make new ones")
    assert await case.broken() == {}
    assert await case.broken(MEMBER_RETURN_SECONDS) == {"other": {"a", "b"}}


async def test_who_joins_one_list_first_has_not_left_the_others(case: Case) -> None:
    """Lists of different brokers are not compared."""
    await case.listed(case.first, "new")
    await case.listed(case.second)
    assert await case.broken() == {}


async def test_who_comes_back_is_waited_for_again(case: Case) -> None:
    """And if it goes once more, its locks are broken once more."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    assert await case.broken() == {"other": {"a", "b"}}
    await case.listed(case.first, "other")
    await case.listed(case.first)
    assert await case.broken() == {"other": {"a", "b"}}


async def test_a_broker_that_did_not_answer_is_told_again(case: Case) -> None:
    """Until then the locks there may stand."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    await case.second.down()
    assert await case.broken() == {"other": {"a"}}
    assert await case.broken() == {"other": {"a"}}


async def test_who_has_gone_is_forgotten_once_its_locks_have_ended(case: Case) -> None:
    """They live for a minute."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    case.clock.turn(71)
    await case.listed(case.first)
    assert await case.broken() == {}


async def test_who_is_surely_gone_does_not_wait_for_one_that_may_be(case: Case) -> None:
    """Its locks are broken, and the other one keeps its own for a moment, in which no broker is asked for it."""
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


async def test_a_broker_that_refused_to_unlock_is_told_again(case: Case) -> None:
    await case.listed(case.first, "other")
    await case.listed(case.first)
    case.second.on(RequestCode.UNLOCK_BATCH_MQ, Reply(ResponseCode.SYSTEM_ERROR, "later"))
    assert await case.broken() == {"other": {"a", "b"}}
    case.second.on(RequestCode.UNLOCK_BATCH_MQ, Reply())
    assert await case.broken() == {"other": {"a", "b"}}
    assert await case.broken() == {}


async def test_a_broker_that_tells_no_list_proves_nothing(case: Case) -> None:
    """Who is gone from the others' lists may be in its own."""
    await case.listed(case.first, "other")
    await case.listed(case.first)
    case.second.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, Reply(ResponseCode.SYSTEM_ERROR, "later"))
    assert await case.broken() == {"other": {"a"}}


async def test_a_wide_group_locks_and_unlocks_its_queues_together(case: Case) -> None:
    """Not by a request for each queue: a lock has a deadline of a second, and a hand-over of a few."""

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


@pytest.mark.parametrize("seconds", [0.0, 2.0, 60.0, NEVER])
async def test_a_java_owner_is_waited_for_until_it_has_released_the_queue(case: Case, seconds: float) -> None:
    """Its running info lists the queue until its last commit is sent. rmqd members are not asked: they have locks."""
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
    await case.clock.until(acquiring.done, "it is released, or the time for it is over")
    assert case.clock.now - since >= min(seconds, 5.0)
    assert (await acquiring, case.ownership.timeouts) == ((True, 0) if seconds < 5.0 else (False, 1))
