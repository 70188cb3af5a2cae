"""A connection that stays open and carries nothing any more is replaced; a server that is stopped keeps its own."""

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
    """Ask as often as it takes, each time with little patience."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                await remoting.invoke(address, ASK, {}, timeout_seconds=3)
            except RemotingError:
                await remoting.clock.sleep(0.1)
            else:
                return


async def go_silent(remoting: RemotingClient, line: SilentLine) -> None:
    """Have a connection, and let a request find out that it carries nothing any more."""
    await remoting.invoke(line.address, ASK, {})
    line.swallow()
    with pytest.raises(RemotingTimeoutError):
        await remoting.invoke(line.address, ASK, {}, timeout_seconds=2.5)
    assert remoting.is_down(line.address)


async def test_a_connection_that_carries_nothing_any_more_is_replaced(
    remoting: RemotingClient, line: SilentLine
) -> None:
    """By the first request after the silence was noticed; then it is closed."""
    await go_silent(remoting, line)
    await ask_until_answered(remoting, line.address)
    assert line.accepted == 2
    assert not remoting.is_down(line.address)
    await eventually(lambda: line.open == 1, "the silent connection is closed")


async def test_what_waits_on_a_silent_connection_is_to_be_asked_again_at_once(
    remoting: RemotingClient, line: SilentLine
) -> None:
    """It does not wait for its own deadline, which is half a minute for a pull."""
    await remoting.invoke(line.address, ASK, {})
    connection = remoting.connected(line.address)
    assert connection is not None
    line.swallow()
    pull = connection.call(PULL, 1, encode_request(PULL, 1, {}), 3600)
    await ask_until_answered(remoting, line.address)
    with pytest.raises(ConnectionRenewedError):
        async with asyncio.timeout(WAIT_SECONDS):
            await pull


async def test_new_connections_that_are_silent_too_are_replaced_as_well(
    remoting: RemotingClient, line: SilentLine
) -> None:
    """A proxy may take connections while it is cut off, and never serve those."""
    line.swallows_new = True
    with pytest.raises(RemotingTimeoutError):
        await remoting.invoke(line.address, ASK, {}, timeout_seconds=2.5)
    asked = asyncio.create_task(ask_until_answered(remoting, line.address))
    await eventually(lambda: line.accepted >= 4, "others were made")
    assert line.open <= 3, "and those before were closed, but for the first"
    line.swallows_new = False
    await asked
    await eventually(lambda: line.open == 1, "the others are closed")


async def test_over_tls_too(flowing: ManualClock) -> None:
    tls = TlsOptions(enabled=True, ca_file=str(CA))
    remoting = RemotingClient(ClientOptions(tls=tls), flowing)
    async with Peer(server_context()) as peer, SilentLine(peer.port) as line:
        await go_silent(remoting, line)
        await ask_until_answered(remoting, line.address)
        assert line.accepted == 2
        await remoting.close()


async def test_a_name_server_that_went_silent_is_asked_by_a_new_connection(
    line: SilentLine, peer: Peer, flowing: ManualClock
) -> None:
    """Also where it is the only one."""
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


async def test_a_server_that_was_stopped_goes_on_by_its_first_connection(remoting: RemotingClient, peer: Peer) -> None:
    """What it was sent before is answered when it runs again, and nothing of that is lost or asked twice."""
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
    await eventually(lambda: peer.connections > 1, "another connection was tried")
    runs.set()
    assert (await pull).body == b"late"
    assert remoting.connected(peer.address) is first
    assert not remoting.is_down(peer.address)
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)


async def test_a_stopped_server_is_not_stormed(remoting: RemotingClient, line: SilentLine) -> None:
    """Its kernel takes every connection. There are two at any time, and pauses between one attempt and the next."""
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
    assert most <= 3, "one that waits, one that is tried, and one that is just being closed"


async def test_a_connection_that_closes_what_it_was_sent_is_tried_with_pauses(flowing: ManualClock) -> None:
    """A load balancer whose server is gone takes connections and ends them, while the silent one lives on."""
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
        await eventually(lambda: accepted >= 4, "it is tried again")
        with pytest.raises(RemotingConnectError):
            remoting.breakers.raise_until_responding(address)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await remoting.close()
    server.close()
    assert accepted < 12
