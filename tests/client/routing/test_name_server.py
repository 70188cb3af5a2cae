"""NameServers: fail-over, staying with the one that answers, addresses that come and go."""

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
    """How many route requests each of them got."""
    return [len(peer.got(ASKED)) for peer in peers]


async def test_one_name_server_is_kept(remoting: RemotingClient, peers: list[Peer]) -> None:
    """All questions go to one of them while it answers."""
    servers = NameServers(remoting, [peer.address for peer in peers])
    for _ in range(5):
        assert await servers.get_route("T") == ROUTE
    assert sorted(asked(peers)) == [0, 0, 5]


async def test_fail_over_and_staying(remoting: RemotingClient, peers: list[Peer]) -> None:
    """When the one in use dies another one answers the same question, and is kept from then on."""
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


async def test_a_silent_first_one_costs_little(peers: list[Peer], clock: ManualClock) -> None:
    """The others are asked while the first is still waited for, not after its deadline."""
    remoting = RemotingClient(clock=clock)
    servers = NameServers(remoting, [peer.address for peer in peers])
    await servers.look_up()
    for peer in peers:
        if peer.address == servers.addresses[0]:
            peer.on(ASKED, None)
    asking = asyncio.create_task(servers.get_route("T"))
    await clock.until(asking.done, "another one answers", most=name_server.PATIENCE_SECONDS)
    assert await asking == ROUTE
    await remoting.close()


async def test_a_missing_topic_is_an_answer(remoting: RemotingClient, peers: list[Peer]) -> None:
    """One name server's word is enough; the others are not asked."""
    servers = NameServers(remoting, [peer.address for peer in peers])
    with pytest.raises(TopicNotExistError):
        await servers.get_route("nowhere")
    assert sum(asked(peers)) == 1


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY])
async def test_a_name_server_that_is_not_ready_is_passed_over(
    remoting: RemotingClient, peers: list[Peer], code: ResponseCode
) -> None:
    """One that waits for brokers, or is overloaded, gives no answer; another one may."""
    servers = NameServers(remoting, [peer.address for peer in peers])
    await servers.look_up()
    for peer in peers:
        if peer.address == servers.addresses[0]:
            peer.on(ASKED, Reply(code, "not now"))
    assert await servers.get_route("T") == ROUTE


async def test_nobody_answers(remoting: RemotingClient, peers: list[Peer]) -> None:
    """The error tells every address with its reason."""
    for peer in peers:
        await peer.down()
    servers = NameServers(remoting, [peer.address for peer in peers])
    with pytest.raises(NameServerError) as raised:
        await servers.get_route("T")
    for peer in peers:
        assert peer.address in str(raised.value)


async def test_none_is_configured(remoting: RemotingClient) -> None:
    """Without an address the error says so instead of waiting."""
    with pytest.raises(NameServerError, match="none is configured"):
        await NameServers(remoting, []).get_route("T")


async def test_a_failed_lookup_keeps_what_was_known(remoting: RemotingClient, peers: list[Peer]) -> None:
    """An address server that is down, or says nothing, takes no name server away; nor does a name that fails."""
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
    """However they are separated, each address counts once."""
    assert parse_addresses(text) == ("a:1", "b:2")
