"""NameServers: fail-over, the preferred name server, and failed lookups of addresses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing import name_server_client as name_server
from rmqd.client.routing.name_server_client import NameServers, parse_addresses
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import NameServerError
from rmqd.errors.broker_errors import TopicNotExistError
from tests.client.peer import Peer, Reply, route_of, routes
from tests.clock import ManualClock

ROUTE = route_of({"broker-a": "127.0.0.1:1"})
ASKED = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.fixture
async def peers() -> AsyncIterator[list[Peer]]:
    """Three name servers that know topic T."""
    peers = [Peer() for _ in range(3)]
    for peer in peers:
        peer.on(ASKED, routes({"T": ROUTE}))
        await peer.listen()
    yield peers
    for peer in peers:
        await peer.down()


def asked(peers: list[Peer]) -> list[int]:
    """The number of route requests that each name server got."""
    return [len(peer.got(ASKED)) for peer in peers]


async def test_one_name_server_is_kept(remoting: RemotingClient, peers: list[Peer]) -> None:
    """All requests go to one name server while it answers."""
    servers = NameServers(remoting, [peer.address for peer in peers])
    for _ in range(5):
        assert await servers.get_route("T") == ROUTE
    assert sorted(asked(peers)) == [0, 0, 5]


async def test_the_name_server_after_a_fail_over_is_kept(remoting: RemotingClient, peers: list[Peer]) -> None:
    """If the name server in use becomes unreachable, another one answers the same request."""
    servers = NameServers(remoting, [peer.address for peer in peers])
    await servers.get_route("T")
    (used,) = [peer for peer in peers if peer.address == servers.addresses[0]]
    await used.down()
    assert await servers.get_route("T") == ROUTE
    chosen = servers.addresses[0]
    assert chosen != used.address
    await used.listen()
    await servers.get_route("T")
    assert servers.addresses[0] == chosen


async def test_a_silent_name_server_delays_a_request_only_briefly(peers: list[Peer], clock: ManualClock) -> None:
    """The other name servers get the request before the deadline of the first."""
    remoting = RemotingClient(clock=clock)
    servers = NameServers(remoting, [peer.address for peer in peers])
    await servers.look_up()
    for peer in peers:
        if peer.address == servers.addresses[0]:
            peer.on(ASKED, None)
    asking = asyncio.create_task(servers.get_route("T"))
    await clock.until(asking.done, "another name server answers", most=name_server.PATIENCE_SECONDS)
    assert await asking == ROUTE
    await remoting.close()


async def test_a_missing_topic_is_an_answer(remoting: RemotingClient, peers: list[Peer]) -> None:
    """The other name servers are not asked."""
    servers = NameServers(remoting, [peer.address for peer in peers])
    with pytest.raises(TopicNotExistError):
        await servers.get_route("nowhere")
    assert sum(asked(peers)) == 1


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY])
async def test_a_name_server_that_is_not_ready_is_skipped(
    remoting: RemotingClient, peers: list[Peer], code: ResponseCode
) -> None:
    """It waits for brokers or is overloaded, and another name server may answer."""
    servers = NameServers(remoting, [peer.address for peer in peers])
    await servers.look_up()
    for peer in peers:
        if peer.address == servers.addresses[0]:
            peer.on(ASKED, Reply(code, "not now"))
    assert await servers.get_route("T") == ROUTE


async def test_the_error_names_every_address_if_none_answers(remoting: RemotingClient, peers: list[Peer]) -> None:
    for peer in peers:
        await peer.down()
    servers = NameServers(remoting, [peer.address for peer in peers])
    with pytest.raises(NameServerError) as raised:
        await servers.get_route("T")
    for peer in peers:
        assert peer.address in str(raised.value)


async def test_a_request_without_a_configured_name_server_fails_at_once(remoting: RemotingClient) -> None:
    with pytest.raises(NameServerError, match="none is configured"):
        await NameServers(remoting, []).get_route("T")


async def test_a_failed_lookup_keeps_the_known_addresses(remoting: RemotingClient, peers: list[Peer]) -> None:
    """The address server may fail or return nothing, or a host name may not resolve."""
    answers: list[str | OSError] = [peers[0].address, OSError("down"), "  "]

    async def fetch(url: str) -> str:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    servers = NameServers(remoting, [], url="http://addresses/ns", fetch=fetch)
    for _ in range(3):
        await servers.look_up()
        assert servers.addresses == (peers[0].address,)

    names: list[list[str]] = [["127.0.0.1"]]

    async def resolve(host: str, port: int) -> list[str]:
        if not names:
            raise OSError("no such host")
        return names.pop()

    named = NameServers(remoting, [f"somewhere:{peers[0].port}"], resolve=resolve)
    await named.look_up()
    await named.look_up()
    assert named.addresses == (peers[0].address,)


@pytest.mark.parametrize("text", ["a:1;b:2", "a:1, b:2\n", " a:1\nb:2;a:1"])
def test_address_lists(text: str) -> None:
    """Each address counts once, with any separator."""
    assert parse_addresses(text) == ("a:1", "b:2")
