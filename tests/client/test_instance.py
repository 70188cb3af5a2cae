"""ClientInstance: registration of groups, requests of brokers, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import UNREGISTER_DEADLINE_SECONDS, ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import RemotingConnectError, RmqdError
from rmqd.wire.bodies.heartbeat_data import HeartbeatData
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.topics import retry_topic
from tests.client.members import Member
from tests.client.peer import Peer, Reply, route_of, routes
from tests.client.running import running
from tests.clock import ManualClock
from tests.waiting import WAIT_SECONDS, eventually

HEART_BEAT, UNREGISTER = RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT


@pytest.fixture
async def name_server(peer: Peer) -> AsyncIterator[Peer]:
    """A name server that knows topic T, served by `peer`, and the retry topics of the groups g and h."""
    async with Peer() as server:
        server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes(known(peer)))
        yield server


@pytest.fixture
async def client(name_server: Peer, clock: ManualClock) -> AsyncIterator[ClientInstance]:
    client = ClientInstance(ClientOptions(nameservers=(name_server.address,)), clock=clock)
    yield client
    await client.remoting.close()


def known(broker: Peer) -> dict[str, TopicRouteData]:
    return dict.fromkeys(["T", retry_topic("g"), retry_topic("h")], route_of({"a": broker.address}))


def groups_of(broker: Peer) -> list[str]:
    """The groups that the last heartbeat named."""
    heartbeat = HeartbeatData.from_json(broker.got(HEART_BEAT)[-1].body)
    return [group.group_name for group in heartbeat.consumer_data_set]


async def test_registering_a_group_sends_a_heartbeat(client: ClientInstance, peer: Peer) -> None:
    """The routes of its topics are looked up too."""
    async with running(client.run()):
        client.register(Member("g", "T"))
        await peer.received(HEART_BEAT)
        assert groups_of(peer) == ["g"]
        assert len(client.routes.queues("T")) == 4
        await eventually(lambda: client.routes.queues(retry_topic("g")), "the retry topic's route")


async def test_groups_share_a_client_and_leave_independently(client: ClientInstance, peer: Peer) -> None:
    """One heartbeat on one connection names both groups. The remaining group keeps its routes."""
    async with running(client.run()):
        client.register(Member("g", "T"))
        await peer.received(HEART_BEAT)
        client.register(Member("h", "T"))
        await eventually(lambda: groups_of(peer) == ["g", "h"], "a heartbeat names both")
        await client.unregister("g")
        (left,) = peer.got(UNREGISTER)
        assert left.ext_fields == {"clientID": client.client_id, "consumerGroup": "g"}
        assert client.routes.queues("T")
        client.heartbeat.send_heartbeats_soon()
        await eventually(lambda: groups_of(peer) == ["h"], "the other group stays")
        await client.unregister("h")
        assert client.routes.broker_addresses() == frozenset()
    assert peer.connections == 1


async def test_a_group_runs_once_in_a_process(client: ClientInstance) -> None:
    """Two groups of one name would compete for their queues under one client id."""
    client.register(Member("g", "T"))
    with pytest.raises(RmqdError, match="g is running in this process already"):
        client.register(Member("g", "T"))


async def test_stop_unregisters_every_group(client: ClientInstance, peer: Peer) -> None:
    """It waits for the answers, then closes the connections."""
    run = asyncio.create_task(client.run())
    for group in ("g", "h"):
        client.register(Member(group, "T"))
    await eventually(lambda: peer.got(HEART_BEAT) and groups_of(peer) == ["g", "h"], "a heartbeat names both groups")
    await eventually(lambda: client.heartbeat.brokers_up.get(peer.address), "the broker is up")
    client.stop()
    async with asyncio.timeout(WAIT_SECONDS):
        await run
    assert sorted(request.ext_fields["consumerGroup"] for request in peer.got(UNREGISTER)) == ["g", "h"]
    with pytest.raises(RemotingConnectError):
        await client.remoting.invoke(peer.address, HEART_BEAT, {})


async def test_a_silent_broker_delays_stop_until_the_unregister_deadline(
    client: ClientInstance, clock: ManualClock, peer: Peer
) -> None:
    """The missing answer raises no exception."""
    peer.on(UNREGISTER, None)
    run = asyncio.create_task(client.run())
    client.register(Member("g", "T"))
    await eventually(lambda: client.heartbeat.brokers_up.get(peer.address), "the broker is up")
    client.stop()
    await clock.advance(UNREGISTER_DEADLINE_SECONDS - 0.1)
    assert not run.done()
    await clock.until(run.done, "it has ended", most=1)


async def test_a_leaving_group_is_not_registered_again(client: ClientInstance, clock: ManualClock, peer: Peer) -> None:
    """The unregister request waits for the answer to a heartbeat that still names the group."""
    async with running(client.run()):
        client.register(Member("g", "T"))
        await eventually(lambda: client.heartbeat.brokers_up.get(peer.address), "the broker is up")
        release = asyncio.Event()

        async def late() -> Reply:
            await release.wait()
            return Reply()

        peer.on(HEART_BEAT, lambda _: late())
        client.heartbeat.send_heartbeats_soon()
        await peer.received(HEART_BEAT, len(peer.got(HEART_BEAT)) + 1)
        leaving = asyncio.create_task(client.unregister("g"))
        await clock.advance(UNREGISTER_DEADLINE_SECONDS - 0.1)
        assert peer.got(UNREGISTER) == []
        release.set()
        await leaving
        assert len(peer.got(UNREGISTER)) == 1


async def test_a_notification_of_member_changes_reaches_only_its_group(client: ClientInstance, peer: Peer) -> None:
    g, h = Member("g", "T"), Member("h", "T")
    async with running(client.run()):
        client.register(g)
        client.register(h)
        await peer.received(HEART_BEAT)
        await peer.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "unknown"}, oneway=True)
        await peer.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "h"}, oneway=True)
        async with asyncio.timeout(WAIT_SECONDS):
            await h.ids_changed.wait()
        assert not g.ids_changed.is_set()


@pytest.mark.parametrize(
    ("code", "field"),
    [
        (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, "group"),
        (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, "group"),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, "consumerGroup"),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, "consumerGroup"),
    ],
)
async def test_requests_of_brokers_are_answered_by_their_group(
    client: ClientInstance, peer: Peer, code: RequestCode, field: str
) -> None:
    """The group gets the complete request. An error of the group becomes code 1 with the reason."""
    member = Member("g", "T")
    async with running(client.run()):
        client.register(member)
        await peer.received(HEART_BEAT)
        member.answer = (ResponseCode.SUCCESS, "", {"a": "b"}, b"told")
        reply = await peer.ask(code, {field: "g", "topic": "T"}, b"asked")
        assert (reply.code, reply.ext_fields, reply.body) == (ResponseCode.SUCCESS, {"a": "b"}, b"told")
        assert (member.asked[0].body, member.asked[0].ext_fields["topic"]) == (b"asked", "T")

        member.answer = RmqdError("no queue of T is held")
        reply = await peer.ask(code, {field: "g"})
        assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "no queue of T is held")

        reply = await peer.ask(code, {field: "stranger"})
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "stranger" in (reply.remark or "")
        assert (await peer.ask(code, {})).code == ResponseCode.SYSTEM_ERROR


async def test_an_unknown_request_code_is_refused(client: ClientInstance, peer: Peer) -> None:
    """It may belong to a later version of the protocol."""
    async with running(client.run()):
        client.register(Member("g", "T"))
        await peer.received(HEART_BEAT)
        assert (await peer.ask(RequestCode(4711), {})).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_an_exception_in_a_group_ends_the_client(client: ClientInstance, peer: Peer) -> None:
    """A group that cannot return its subscriptions is a defect, so `run` raises."""

    class Broken(Member):
        broken = False

        def consumer_data(self) -> object:  # type: ignore[override]
            if self.broken:
                raise LookupError("defect")
            return super().consumer_data()

    member = Broken("g", "T")
    client.register(member)  # type: ignore[arg-type]
    member.broken = True
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(WAIT_SECONDS):
            await client.run()
    assert raised.group_contains(LookupError)


async def test_the_snapshot_counts_requests_and_brokers(client: ClientInstance, peer: Peer) -> None:
    """Metrics and the status page show these values."""
    async with running(client.run()):
        client.register(Member("g", "T"))
        await eventually(lambda: client.heartbeat.brokers_up.get(peer.address), "the broker is up")
        snapshot = client.snapshot()
    assert snapshot.client_id == client.client_id
    assert [*snapshot.brokers_up.values()] == [True]
    assert snapshot.requests[RequestCode.HEART_BEAT].count >= 1
    assert snapshot.requests[RequestCode.GET_ROUTEINFO_BY_TOPIC].count >= 1
    assert snapshot.request_failures == {}
    assert snapshot.corrupt_frames == 0
