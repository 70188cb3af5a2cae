"""The requests of a driver and a local member, with a scripted broker: of two new ones, one sees the other."""

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
    """Make all waits ten times shorter."""
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
    """Return the requests about the group's membership, in order."""
    about = (RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.UNREGISTER_CLIENT)
    return [RequestCode(request.code) for request in broker.peer.requests if request.code in about]


async def test_a_driver_checks_the_members_before_and_after_its_heartbeat(scripted: ScriptedBroker) -> None:
    membership = presence_at(scripted.peer.address)
    await membership.join()
    looked, heartbeat = RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.HEART_BEAT
    codes = said(scripted)
    assert (codes[:2], codes[-1]) == ([looked, heartbeat], looked)
    await membership.leave()


async def test_a_driver_that_finds_a_member_sends_no_heartbeat(scripted: ScriptedBroker) -> None:
    scripted.members[GROUP].append(LOCAL)
    with pytest.raises(GroupHeldElsewhereError):
        await presence_at(scripted.peer.address).join()
    assert said(scripted) == [RequestCode.GET_CONSUMER_LIST_BY_GROUP]


async def test_a_new_driver_leaves_the_group_to_a_new_member(scripted: ScriptedBroker) -> None:
    scripted.before_heartbeat.append(lambda: scripted.members[GROUP].append(LOCAL))
    with pytest.raises(GroupHeldElsewhereError):
        await presence_at(scripted.peer.address).join()
    assert scripted.members[GROUP] == [LOCAL]


@pytest.mark.slow
async def test_a_new_local_member_waits_until_a_new_driver_leaves(scripted: ScriptedBroker) -> None:
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
            await eventually(lambda: len(one.owned()) == 2, "the member has all queues")


@pytest.mark.slow
async def test_a_running_local_member_keeps_its_queues_while_a_driver_joins_briefly(scripted: ScriptedBroker) -> None:
    async with member(scripted.peer.address, Seen()) as one:
        await eventually(lambda: len(one.owned()) == 2, "the member has all queues")
        before, looked = one.consumer.snapshot().rebalances, len(said(scripted))
        await scripted.gain(GROUP, SPARK)
        await eventually(lambda: len(said(scripted)) >= looked + 2, "the member has checked twice")
        await scripted.lose(SPARK)
        assert one.consumer.snapshot().rebalances == before
        assert len(one.owned()) == 2


@pytest.mark.slow
async def test_a_running_driver_polls_often_while_another_member_is_in_the_group(scripted: ScriptedBroker) -> None:
    membership = presence_at(scripted.peer.address)
    await membership.join()
    watching = asyncio.create_task(membership.watch_members())
    await scripted.gain(GROUP, LOCAL)
    async with asyncio.timeout(4):
        with pytest.raises(GroupHeldElsewhereError):
            await watching
    await membership.leave()


async def test_a_driver_sends_a_heartbeat_to_a_broker_that_does_not_list_it(scripted: ScriptedBroker) -> None:
    """Otherwise members of the local engine would not see it in the list of a restarted broker."""
    membership = presence_at(scripted.peer.address)
    await membership.join()
    scripted.members[GROUP].clear()
    scripted.peer.requests.clear()
    watching = asyncio.create_task(membership.watch_members())
    await eventually(lambda: len(said(scripted)) >= 3, "the driver has checked")
    looked = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    assert said(scripted)[:3] == [looked, RequestCode.HEART_BEAT, looked]
    assert scripted.members[GROUP] == [membership.client_id]
    watching.cancel()
    await membership.leave()


async def test_an_unreachable_broker_does_not_block_the_others(scripted: ScriptedBroker) -> None:
    """The driver joins, and the members in the other brokers' lists are found."""
    async with Peer() as other:
        down = other.address
    route = route_of({BROKER: scripted.peer.address, "broker-z": down}, 2)
    scripted.peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes({TOPIC: route}))
    membership = presence_at(scripted.peer.address)
    await membership.join()
    with pytest.raises(GroupHeldElsewhereError):
        await presence_at(scripted.peer.address).join()
    await membership.leave()


async def test_the_driver_does_not_start_if_all_brokers_are_unreachable(scripted: ScriptedBroker) -> None:
    async with Peer() as other:
        down = other.address
    scripted.peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes({TOPIC: route_of({BROKER: down}, 2)}))
    with pytest.raises(RemotingConnectError, match=down):
        await presence_at(scripted.peer.address).join()
