"""In which order a driver and a local member speak, with a scripted broker: of two that are new, one sees the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmqd.codes import RequestCode
from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.rebalance import ownership
from rmqd.errors import GroupHeldElsewhereError, RemotingConnectError
from rmqd.spark.engine import driver_membership as module
from rmqd.spark.engine.driver_membership import DriverMembership
from rmqd.spark.session.group_spec import GroupSpec
from tests.client.peer import Peer, route_of, routes
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import BROKER, ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

LOCAL, SPARK = "10.0.0.1@7#1", "10.0.0.2@spark-7#1"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits in proportion, ten times as fast."""
    for name in ("STARTING_SENIOR_WAIT_SECONDS", "JUNIOR_WAIT_SECONDS", "SENIOR_WAIT_SECONDS"):
        monkeypatch.setattr(ownership, name, getattr(ownership, name) / 10)
    monkeypatch.setattr(module, "CONFLICT_POLL_SECONDS", module.CONFLICT_POLL_SECONDS / 10)
    monkeypatch.setattr("rmqd.consumer.rebalance.rebalance.UNBALANCED_PASS_INTERVAL_SECONDS", 0.1)


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedBroker]:
    """A name server and broker with a topic."""
    async with Peer() as peer:
        broker = ScriptedBroker(peer)
        broker.create_topic(TOPIC, 2)
        yield broker


def presence_at(nameserver: str) -> DriverMembership:
    group = {"engine": "spark", "subscriptions": {TOPIC: "*"}, "handler": {"plugin": "noop"}}
    return DriverMembership(
        GroupSpec(GROUP, RootConfig.model_validate({"nameserver": nameserver, "groups": {GROUP: group}}))
    )


def said(broker: ScriptedBroker) -> list[RequestCode]:
    """What was asked of the group's membership, one after the other."""
    about = (RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.UNREGISTER_CLIENT)
    return [RequestCode(request.code) for request in broker.peer.requests if request.code in about]


async def test_a_driver_looks_before_and_after_its_heartbeat(scripted: ScriptedBroker) -> None:
    membership = presence_at(scripted.peer.address)
    await membership.join()
    looked, heartbeat = RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.HEART_BEAT
    codes = said(scripted)
    assert (codes[:2], codes[-1]) == ([looked, heartbeat], looked)
    await membership.leave()


async def test_a_driver_that_finds_somebody_says_nothing(scripted: ScriptedBroker) -> None:
    scripted.members[GROUP].append(LOCAL)
    with pytest.raises(GroupHeldElsewhereError):
        await presence_at(scripted.peer.address).join()
    assert said(scripted) == [RequestCode.GET_CONSUMER_LIST_BY_GROUP]


async def test_a_driver_that_is_new_leaves_to_a_member_that_is_new(scripted: ScriptedBroker) -> None:
    scripted.before_heartbeat.append(lambda: scripted.members[GROUP].append(LOCAL))
    with pytest.raises(GroupHeldElsewhereError):
        await presence_at(scripted.peer.address).join()
    assert scripted.members[GROUP] == [LOCAL]


@pytest.mark.slow
async def test_a_local_member_that_is_new_waits_for_such_a_driver_to_leave(scripted: ScriptedBroker) -> None:
    """It pulls nothing until then."""
    later = asyncio.get_running_loop().call_later

    def drops_in() -> None:
        scripted.members[GROUP].append(SPARK)
        later(0.15, scripted.members[GROUP].remove, SPARK)

    scripted.before_heartbeat.append(drops_in)
    async with member(scripted.peer.address, Seen()) as one:
        await eventually(lambda: len(scripted.members[GROUP]) == 2, "both are in the group")
        await eventually(lambda: len(scripted.members[GROUP]) == 1, "the driver has left")
        assert scripted.pulls == []
        async with asyncio.timeout(2):
            await eventually(lambda: len(one.owned()) == 2, "it has all queues")


@pytest.mark.slow
async def test_a_local_member_that_runs_gives_no_queue_to_a_driver_that_looks_in(scripted: ScriptedBroker) -> None:
    async with member(scripted.peer.address, Seen()) as one:
        await eventually(lambda: len(one.owned()) == 2, "it has all queues")
        before, looked = one.consumer.snapshot().rebalances, len(said(scripted))
        await scripted.gain(GROUP, SPARK)
        await eventually(lambda: len(said(scripted)) >= looked + 2, "it has seen the driver, twice")
        await scripted.lose(SPARK)
        assert one.consumer.snapshot().rebalances == before
        assert len(one.owned()) == 2


@pytest.mark.slow
async def test_a_driver_that_runs_looks_often_while_somebody_is_there(scripted: ScriptedBroker) -> None:
    membership = presence_at(scripted.peer.address)
    await membership.join()
    watching = asyncio.create_task(membership.watch_members())
    await scripted.gain(GROUP, LOCAL)
    async with asyncio.timeout(4):
        with pytest.raises(GroupHeldElsewhereError):
            await watching
    await membership.leave()


async def test_a_driver_that_some_broker_does_not_know_says_so_there_first(scripted: ScriptedBroker) -> None:
    """One that came back just now: members of the local engine would not see the driver in its list."""
    membership = presence_at(scripted.peer.address)
    await membership.join()
    scripted.members[GROUP].clear()
    scripted.peer.requests.clear()
    watching = asyncio.create_task(membership.watch_members())
    await eventually(lambda: len(said(scripted)) >= 3, "it has looked")
    looked = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    assert said(scripted)[:3] == [looked, RequestCode.HEART_BEAT, looked]
    assert scripted.members[GROUP] == [membership.client_id]
    watching.cancel()
    await membership.leave()


async def test_a_broker_that_is_down_keeps_nobody_from_the_others(scripted: ScriptedBroker) -> None:
    """Nor does it hide who is in their lists."""
    async with Peer() as other:
        down = other.address
    route = route_of({BROKER: scripted.peer.address, "broker-z": down}, 2)
    scripted.peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes({TOPIC: route}))
    membership = presence_at(scripted.peer.address)
    await membership.join()
    with pytest.raises(GroupHeldElsewhereError):
        await presence_at(scripted.peer.address).join()
    await membership.leave()


async def test_where_no_broker_tells_who_is_there_it_does_not_start(scripted: ScriptedBroker) -> None:
    async with Peer() as other:
        down = other.address
    scripted.peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes({TOPIC: route_of({BROKER: down}, 2)}))
    with pytest.raises(RemotingConnectError, match=down):
        await presence_at(scripted.peer.address).join()
