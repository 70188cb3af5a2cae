"""Incomplete frames: their time and their total size are limited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from rmqd.broker import peer_channel as server
from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ, embedded_rocketmq
from tests.broker.peer import Peer

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
