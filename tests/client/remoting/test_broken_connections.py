"""RemotingClient with peers that hang up, stop reading, or send invalid frames."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode
from rmqd.errors import (
    RemotingClosedError,
    RemotingError,
    RemotingTimeoutError,
)
from rmqd.wire.command import encode_response
from tests.client.raw_server import RawServer, read_command
from tests.waiting import WAIT_SECONDS, eventually

ASK = RequestCode.GET_MAX_OFFSET
OTHER = RequestCode.GET_MIN_OFFSET


async def test_a_connection_that_was_closed_at_once_is_not_used_again(remoting: RemotingClient) -> None:
    """However early the peer closes it, the next request opens a new connection."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end

    async with RawServer(hang_up) as server:
        for attempt in range(1, 30):
            with pytest.raises(RemotingError):
                await remoting.invoke(server.address, ASK, {}, timeout_seconds=1)
            await eventually(lambda: remoting.connected(server.address) is None, "the dead connection is gone")
            assert server.accepted == 2 * attempt, "another connection checks whether it requires TLS"
            remoting.secure(ClientOptions())


async def test_a_partial_frame_fails_the_request_and_is_discarded(remoting: RemotingClient) -> None:
    """The request fails at once, and the next connection starts with an empty buffer."""

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_command(reader)
        writer.write(struct.pack(">II", 1000, 100) + b'{"code":0')
        await writer.drain()

    async with RawServer(half) as server:
        for _ in range(2):
            with pytest.raises(RemotingClosedError):
                await remoting.invoke(server.address, ASK, {}, timeout_seconds=5)
    assert remoting.traffic.corrupt_frames == 0


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(struct.pack(">II", 4 + 5, 5) + b"hello", id="no header"),
        pytest.param(struct.pack(">II", 4, 0x7000000), id="unknown serialize type"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="HTTP"),
        pytest.param(struct.pack(">I", 16 * 1024 * 1024 + 1), id="too large"),
    ],
)
async def test_an_invalid_frame_closes_the_connection(remoting: RemotingClient, garbage: bytes) -> None:
    """It is counted, the waiting request fails with the reason, and the next request opens a new connection."""

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_command(reader)
        writer.write(garbage)
        await reader.read()

    async with RawServer(nonsense) as server:
        for count in (1, 2):
            reason = "could not be decoded.* the peer answers in HTTP" if b"HTTP" in garbage else "could not be decoded"
            with pytest.raises(RemotingClosedError, match=reason):
                await remoting.invoke(server.address, ASK, {}, timeout_seconds=5)
            assert remoting.traffic.corrupt_frames == count
        assert server.accepted == 2


async def test_a_request_to_a_peer_that_does_not_read_times_out(remoting: RemotingClient) -> None:
    """A request that cannot be written must not wait forever."""

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with RawServer(deaf) as server:
        body = b"x" * 8 * 1024 * 1024
        first = asyncio.create_task(remoting.invoke(server.address, ASK, {}, body, timeout_seconds=0.3))
        await eventually(lambda: remoting.connected(server.address), "connected")
        await asyncio.sleep(0.05)
        with pytest.raises(RemotingTimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                await remoting.invoke(server.address, OTHER, {}, timeout_seconds=0.2)
        with pytest.raises(RemotingTimeoutError):
            await first


async def test_a_closing_connection_takes_no_request(remoting: RemotingClient) -> None:
    """Unsent bytes may delay the close, so the next request opens a new connection."""
    reads = asyncio.Event()

    async def first_one_deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if server.accepted > 1:
            command = await read_command(reader)
            header = b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"version":513}' % command.opaque
            writer.write(struct.pack(">II", 4 + len(header), len(header)) + header)
        await reads.wait()

    async with RawServer(first_one_deaf) as server:
        connection = await remoting.connection(server.address)
        transport_full = asyncio.create_task(remoting.invoke(server.address, ASK, {}, b"x" * 4_000_000))
        await asyncio.sleep(0)
        remoting.disconnect(server.address, "not wanted")
        async with asyncio.timeout(WAIT_SECONDS):  # before the event loop reports the close of the first one
            await remoting.invoke(server.address, OTHER, {}, timeout_seconds=WAIT_SECONDS)
        with pytest.raises(RemotingClosedError, match="not wanted"):
            await transport_full
        assert not connection.is_open
        assert server.accepted == 2


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A gateway whose broker is down."""
    await reader.read(10)


async def test_a_frame_that_never_ends_closes_the_connection(
    remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one flipped bit in its length it includes the later answers, so the connection is not silent."""
    monkeypatch.setattr("rmqd.client.remoting.remoting_client.FRAME_SECONDS", 0.3)
    damaged = [True]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            answer = encode_response(await read_command(reader), 0)
            if damaged:
                damaged.clear()
                answer = (len(answer) ^ 1 << 22).to_bytes(4, "big") + answer[4:]
            writer.write(answer)

    async with RawServer(serve) as server, asyncio.timeout(10):
        while True:
            try:
                await remoting.invoke(server.address, RequestCode.GET_MAX_OFFSET, {}, timeout_seconds=0.1)
            except RemotingError:
                continue
            break
    assert server.accepted == 2
    assert remoting.traffic.corrupt_frames == 1
