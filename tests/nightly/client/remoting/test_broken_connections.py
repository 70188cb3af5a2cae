"""RemotingClient with peers that close connections, stop reading, or send invalid frames."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode
from rmqd.errors import (
    RemotingClosedError,
    RemotingError,
)
from rmqd.wire.command import RemotingCommand
from tests.client.members import Member
from tests.client.peer import Peer, route_of, routes
from tests.client.raw_server import RawServer, read_command
from tests.client.remoting.test_broken_connections import ASK, OTHER, hang_up
from tests.client.running import running
from tests.waiting import WAIT_SECONDS, eventually


@pytest.mark.parametrize(("flag", "named"), [(5, "0x4"), (-(2**31) + 1, "0x80000000")])
async def test_a_frame_with_unknown_flag_bits_is_refused(remoting: RemotingClient, flag: int, named: str) -> None:
    """The rest of such a frame may have another meaning."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        command = await read_command(reader)
        header = b'{"code":0,"flag":%d,"language":"JAVA","opaque":%d,"version":513}' % (flag, command.opaque)
        writer.write(struct.pack(">II", 4 + len(header), len(header)) + header)
        await reader.read()

    async with RawServer(answer) as server:
        with pytest.raises(RemotingClosedError, match=f"flag has bits that rmqd does not know: {named}"):
            await remoting.invoke(server.address, ASK, {}, timeout_seconds=5)
    assert remoting.traffic.corrupt_frames == 1


async def test_a_response_may_arrive_byte_by_byte(remoting: RemotingClient) -> None:
    """TCP does not keep boundaries."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        command = await read_command(reader)
        header = b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"version":513}' % command.opaque
        for byte in struct.pack(">II", 4 + len(header) + 4, len(header)) + header + b"body":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    async with RawServer(drip) as server:
        assert (await remoting.invoke(server.address, ASK, {})).body == b"body"


async def test_a_request_that_cannot_be_written_ends_the_connection(remoting: RemotingClient, peer: Peer) -> None:
    """Joining or writing frames may fail, for example without memory. The next request must be answered."""
    connection = await remoting.connection(peer.address)
    waiting = asyncio.create_task(connection.invoke(ASK, {}, b"", 60))
    await asyncio.sleep(0)
    connection.write("no bytes")  # type: ignore[arg-type]
    with pytest.raises(RemotingClosedError, match="could not be sent"):
        async with asyncio.timeout(WAIT_SECONDS):
            await waiting
    await remoting.invoke(peer.address, OTHER, {}, timeout_seconds=WAIT_SECONDS)
    assert len(peer.requests) == 1


async def test_a_notification_that_cannot_be_handled_ends_the_connection(remoting: RemotingClient, peer: Peer) -> None:
    """Memory may run out. With many frames at once, no caller sees the error of a later turn."""

    def fail(command: RemotingCommand, address: str) -> None:
        raise MemoryError

    remoting.peer_requests.notice_handlers[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = fail
    await remoting.invoke(peer.address, ASK, {})
    for _ in range(1000):
        await peer.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {}, oneway=True)
    await eventually(lambda: remoting.connected(peer.address) is None, "the connection is closed")
    await remoting.invoke(peer.address, ASK, {})
    assert peer.connections == 2


async def half_an_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A broker that dies while it sends a response."""
    await reader.read(10)
    writer.write(struct.pack(">II", 1000, 100) + b'{"code":0')


async def another_protocol(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A wrong port."""
    await reader.read(10)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await reader.read()


async def greeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A wrong port of a server that speaks first."""
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    await reader.read()


async def empty_frame(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(10)
    writer.write(struct.pack(">I", 0))
    await reader.read()


async def good_and_bad(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A broker that answers the first request, and then sends an invalid frame."""
    command = await read_command(reader)
    header = b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"version":513}' % command.opaque
    writer.write(struct.pack(">II", 4 + len(header), len(header)) + header)
    await writer.drain()
    await asyncio.sleep(0.01)
    writer.write(struct.pack(">I", 0))
    await reader.read()


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def connections_in_half_a_second(serve: Serve) -> int:
    """Return how often a client with a group connects to such a broker."""
    async with RawServer(serve) as broker, Peer() as name_server:
        name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes({"T": route_of({"broker-a": broker.address})}))
        client = ClientInstance(ClientOptions(nameservers=(name_server.address,)))
        async with running(client.run()):
            client.register(Member("g", "T"))
            await eventually(lambda: broker.accepted >= 2, "the broker is asked")
            await asyncio.sleep(0.5)  # further connections must not happen, so there is nothing to await
            return broker.accepted


async def test_a_broken_broker_is_not_flooded_with_connections() -> None:
    """Without pauses, heartbeats would reconnect as fast as they can."""
    brokers = (hang_up, good_and_bad, half_an_answer, another_protocol, greeting, empty_frame)
    counts = await asyncio.gather(*map(connections_in_half_a_second, brokers))
    by_broker = {serve.__name__: count for serve, count in zip(brokers, counts, strict=True)}
    assert not {name: count for name, count in by_broker.items() if count >= 12}


async def test_closing_the_client_closes_a_connection_that_it_has_left() -> None:
    """It is closed before its last response arrives, because the event loop may end next."""
    client = RemotingClient()
    async with Peer() as peer:
        peer.on(ASK, None)
        asking = asyncio.create_task(client.invoke(peer.address, ASK, {}, timeout_seconds=1))
        await peer.received(ASK)
        connection = await client.connection(peer.address)
        client.retire(connection, "the broker goes away")
        await asyncio.sleep(0)  # the task that waits for the response starts
        await client.close()
        assert not connection.is_open
        with pytest.raises(RemotingError):
            await asking
