"""Replacement of open connections that carry no data. The first connection of a suspended server is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from rmqd.client.client_options import ClientOptions, TlsOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode
from rmqd.errors import ConnectionRenewedError, RemotingConnectError, RemotingError, RemotingTimeoutError, RmqdError
from rmqd.wire.command import RemotingCommand, encode_request
from tests.certificates import CA, server_context
from tests.client.peer import Peer, Reply, route_of, routes
from tests.client.remoting.silent_line import SilentLine
from tests.clock import ManualClock
from tests.waiting import WAIT_SECONDS, eventually

ASK = RequestCode.GET_MAX_OFFSET
PULL = RequestCode.PULL_MESSAGE


@pytest.fixture
async def remoting(flowing: ManualClock) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=flowing)
    yield client
    await client.close()


@pytest.fixture
async def line(peer: Peer) -> AsyncIterator[SilentLine]:
    async with SilentLine(peer.port) as line:
        yield line


async def ask_until_answered(remoting: RemotingClient, address: str) -> None:
    """Send requests with a short timeout until one is answered."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                await remoting.invoke(address, ASK, {}, timeout_seconds=3)
            except RemotingError:
                await remoting.clock.sleep(0.1)
            else:
                return


async def go_silent(remoting: RemotingClient, line: SilentLine) -> None:
    """Open a connection, make it silent, and let a request time out on it."""
    await remoting.invoke(line.address, ASK, {})
    line.swallow()
    with pytest.raises(RemotingTimeoutError):
        await remoting.invoke(line.address, ASK, {}, timeout_seconds=2.5)
    assert remoting.is_down(line.address)


async def test_a_silent_connection_is_replaced(remoting: RemotingClient, line: SilentLine) -> None:
    """The first request after the timeout opens a new connection. Then the silent one is closed."""
    await go_silent(remoting, line)
    await ask_until_answered(remoting, line.address)
    assert line.accepted == 2
    assert not remoting.is_down(line.address)
    await eventually(lambda: line.open == 1, "the silent connection is closed")


async def test_requests_on_a_silent_connection_fail_once_it_is_replaced(
    remoting: RemotingClient, line: SilentLine
) -> None:
    """They do not wait for their own timeout, which is 30 s for a pull."""
    await remoting.invoke(line.address, ASK, {})
    connection = remoting.connected(line.address)
    assert connection is not None
    line.swallow()
    pull = connection.call(PULL, 1, encode_request(PULL, 1, {}), 3600)
    await ask_until_answered(remoting, line.address)
    with pytest.raises(ConnectionRenewedError):
        async with asyncio.timeout(WAIT_SECONDS):
            await pull


async def test_new_connections_that_are_silent_too_are_also_replaced(
    remoting: RemotingClient, line: SilentLine
) -> None:
    """A proxy may accept connections while it has no network, and never serve them."""
    line.swallows_new = True
    with pytest.raises(RemotingTimeoutError):
        await remoting.invoke(line.address, ASK, {}, timeout_seconds=2.5)
    asked = asyncio.create_task(ask_until_answered(remoting, line.address))
    await eventually(lambda: line.accepted >= 4, "other connections were opened")
    assert line.open <= 3, "earlier connections except the first were closed"
    line.swallows_new = False
    await asked
    await eventually(lambda: line.open == 1, "the other connections are closed")


async def test_a_silent_tls_connection_is_replaced(flowing: ManualClock) -> None:
    tls = TlsOptions(enabled=True, ca_file=str(CA))
    remoting = RemotingClient(ClientOptions(tls=tls), flowing)
    async with Peer(server_context()) as peer, SilentLine(peer.port) as line:
        await go_silent(remoting, line)
        await ask_until_answered(remoting, line.address)
        assert line.accepted == 2
        await remoting.close()


async def test_a_silent_connection_to_a_name_server_is_replaced(
    line: SilentLine, peer: Peer, flowing: ManualClock
) -> None:
    """This holds for the only name server too."""
    peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes({"T": route_of({"broker-a": "127.0.0.1:1"})}))
    client = ClientInstance(ClientOptions(nameservers=(line.address,)), clock=flowing)
    await client.routes.refresh("T")
    line.swallow()
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                await client.routes.refresh("T")
            except RmqdError:
                await flowing.sleep(0.1)
            else:
                break
    assert line.accepted == 2
    await client.close()


async def test_a_resumed_server_continues_on_its_first_connection(remoting: RemotingClient, peer: Peer) -> None:
    """It then answers earlier requests. None of them is lost or sent twice."""
    runs = asyncio.Event()

    async def once_it_runs(_: RemotingCommand) -> Reply:
        await runs.wait()
        return Reply(body=b"late")

    peer.on(PULL, once_it_runs)
    peer.on(ASK, None)
    first = await remoting.connection(peer.address)
    pull = first.call(PULL, 1, encode_request(PULL, 1, {}), 3600)
    with pytest.raises(RemotingTimeoutError):
        await remoting.invoke(peer.address, ASK, {}, timeout_seconds=2.5)
    probe = asyncio.create_task(ask_until_answered(remoting, peer.address))
    await eventually(lambda: peer.connections > 1, "another connection was opened")
    runs.set()
    assert (await pull).body == b"late"
    assert remoting.connected(peer.address) is first
    assert not remoting.is_down(peer.address)
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)


async def test_a_suspended_server_is_not_flooded_with_connections(remoting: RemotingClient, line: SilentLine) -> None:
    """Its kernel accepts every connection. The client keeps two, and pauses between attempts."""
    await go_silent(remoting, line)
    line.swallows_new = True
    askers = [asyncio.create_task(ask_until_answered(remoting, line.address)) for _ in range(20)]
    most = 0
    async with asyncio.timeout(WAIT_SECONDS):
        while line.accepted < 5:
            most = max(most, line.open)
            await asyncio.sleep(0.005)
    for asker in askers:
        asker.cancel()
    await asyncio.gather(*askers, return_exceptions=True)
    assert most <= 3, "one connection waits, one is tried, and one is being closed"


async def test_reconnects_pause_if_new_connections_are_closed(flowing: ManualClock) -> None:
    """A load balancer without a server closes new connections, while the silent connection stays open."""
    accepted = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        await reader.read(10)
        if accepted > 1:
            writer.transport.abort()
            return
        await reader.read()
        writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    remoting = RemotingClient(clock=flowing)
    with pytest.raises(RemotingTimeoutError):
        await remoting.invoke(address, ASK, {}, timeout_seconds=2.5)
    with capture_logs():
        asked = asyncio.create_task(ask_until_answered(remoting, address))
        await eventually(lambda: accepted >= 4, "the client reconnects")
        with pytest.raises(RemotingConnectError):
            remoting.breakers.raise_until_responding(address)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await remoting.close()
    server.close()
    assert accepted < 12
