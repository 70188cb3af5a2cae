"""Incomplete frames and unread responses: their time and their total size are limited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from rmqd.broker import peer_channel as server
from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ, embedded_rocketmq
from rmqd.codes import RequestCode
from rmqd.wire.command import RemotingCommand, encode_command
from tests.broker.peer import Peer
from tests.broker.stores import put
from tests.waiting import eventually

HALF = (1_000_000).to_bytes(4, "big") + b"x" * 500_000


@contextlib.asynccontextmanager
async def half_frame(address: str) -> AsyncIterator[asyncio.StreamReader]:
    """Open a connection and send half of a frame."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(HALF)
    await writer.drain()
    try:
        yield reader
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait until the connection is closed."""
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_the_oldest_connection_is_closed_if_half_frames_need_too_much(
    embedded: EmbeddedRocketMQ, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded, and clients with complete frames are not affected."""
    monkeypatch.setattr(server, "HALF_FRAMES_BYTES", 1_200_000)
    address = embedded.broker.address
    async with half_frame(address) as first, half_frame(address) as second, half_frame(address):
        await ended(first)
        assert not second.at_eof()
        assert (await peer.send("T")).code == 0


async def test_a_connection_with_an_unfinished_frame_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 30 seconds (here 0), by the next scan for idle connections."""
    monkeypatch.setattr(server, "HALF_FRAME_SECONDS", 0.0)
    monkeypatch.setattr(server, "_IDLE_SCAN_SECONDS", 0.05)
    async with embedded_rocketmq() as embedded, half_frame(embedded.broker.address) as reader:
        await ended(reader)


async def test_a_connection_above_the_maximum_is_closed(
    embedded: EmbeddedRocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 0)
    async with half_frame(embedded.broker.address) as reader:
        await ended(reader)


async def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a client that a debugger has stopped. The broker's end would wait for it from Python 3.12 on."""
    monkeypatch.setattr(server, "CLOSE_SECONDS", 0.05)
    async with embedded_rocketmq() as embedded:
        put(embedded.broker.store, b"x" * 4_000_000)
        host, port = embedded.broker.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1000)
        view = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, 1, 0, {"offset": "0"})
        writer.write(encode_command(view) * 5)
        assert await reader.readexactly(4)  # asyncio stops reading at twice the limit
        channels = embedded.servers[0].channels
        assert len(channels) == 1
    try:
        await eventually(lambda: not channels, "the connection is closed")
    finally:
        writer.transport.abort()
