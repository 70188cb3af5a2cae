"""Who of a group's members has gone: several brokers' lists, which learn of it at different times."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.codes import RequestCode
from rmqd.consumer.ownership import SURE_SECONDS, QueueOwnership
from rmqd.wire.lock import LockBatchRequestBody
from tests.client.peer import Peer, route_of, routes
from tests.consumer.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC


class Case:
    """One member's view of the others, with two brokers."""

    def __init__(self, first: Peer, second: Peer, client: ClientInstance) -> None:
        self.first = first
        self.second = second
        self.clock = ManualClock()
        self.client = client
        self.ownership = QueueOwnership(client, GROUP, 5.0, self.clock)

    async def broken(self, after_seconds: float = SURE_SECONDS) -> dict[str, set[str]]:
        """Whose locks are broken then, by the broker's name."""
        self.clock.advance(after_seconds)
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
async def case() -> AsyncIterator[Case]:
    """Two brokers with two queues each, the first of them also the name server."""
    async with Peer() as first, Peer() as second:
        route = route_of({"a": first.address, "b": second.address}, 2)
        first.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes({TOPIC: route}))
        client = ClientInstance(ClientOptions(nameservers=(first.address,)))
        await client.routes.lookup(TOPIC)
        yield Case(first, second, client)
        await client.remoting.close()


async def test_who_left_every_list_has_gone(case: Case) -> None:
    """Its locks are broken, once, on every broker, for all queues of the topic."""
    for peer in (case.first, case.second):
        case.ownership.members_are(peer.address, ["me", "other"])
    assert await case.broken() == {}
    case.ownership.members_are(case.first.address, ["me"])
    assert await case.broken() == {}, "the other broker still has it"
    case.ownership.members_are(case.second.address, ["me"])
    assert await case.broken() == {"other": {"a", "b"}}
    assert await case.broken() == {}, "once is enough"


async def test_who_left_one_list_only_is_looked_for_in_the_others(case: Case) -> None:
    """What is remembered of them may be old."""
    for peer in (case.first, case.second):
        assert case.ownership.members_are(peer.address, ["me", "other"]) == []
    assert case.ownership.members_are(case.first.address, ["me"]) == [case.second.address]
    assert case.ownership.members_are(case.first.address, ["me"]) == []
    assert case.ownership.members_are(case.second.address, ["me"]) == []


async def test_who_is_missing_for_a_moment_keeps_its_locks(case: Case) -> None:
    """A broker takes a member out whose connection was cut; its next heartbeat brings it back."""
    at = case.first.address
    case.ownership.members_are(at, ["me", "other"])
    case.ownership.members_are(at, ["me"])
    assert await case.broken(SURE_SECONDS / 2) == {}
    case.ownership.members_are(at, ["me", "other"])
    assert await case.broken() == {}
    case.ownership.members_are(at, ["me"])
    assert await case.broken(SURE_SECONDS / 2) == {}
    assert await case.broken(SURE_SECONDS / 2) == {"other": {"a", "b"}}


async def test_who_joins_one_list_first_has_not_left_the_others(case: Case) -> None:
    """Lists of different brokers are not compared."""
    case.ownership.members_are(case.first.address, ["me", "new"])
    case.ownership.members_are(case.second.address, ["me"])
    assert await case.broken() == {}


async def test_who_comes_back_is_waited_for_again(case: Case) -> None:
    """And if it goes once more, its locks are broken once more."""
    at = case.first.address
    for members in (["me", "other"], ["me"]):
        case.ownership.members_are(at, members)
    assert await case.broken() == {"other": {"a", "b"}}
    case.ownership.members_are(at, ["me", "other"])
    assert await case.broken() == {}
    case.ownership.members_are(at, ["me"])
    assert await case.broken() == {"other": {"a", "b"}}


async def test_a_broker_that_did_not_answer_is_told_again(case: Case) -> None:
    """Until then the locks there may stand."""
    for members in (["me", "other"], ["me"]):
        case.ownership.members_are(case.first.address, members)
    await case.second.down()
    assert await case.broken() == {"other": {"a"}}
    assert await case.broken() == {"other": {"a"}}


async def test_who_has_gone_is_forgotten_once_its_locks_have_ended(case: Case) -> None:
    """They live for a minute."""
    for members in (["me", "other"], ["me"]):
        case.ownership.members_are(case.first.address, members)
    case.clock.advance(71)
    case.ownership.members_are(case.first.address, ["me"])
    assert await case.broken() == {}
