"""Frames that begin and do not end: they have a time, and together a size."""

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
    """A connection that has sent half of a frame."""
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
    """Wait for the end of a connection."""
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_the_oldest_gives_way_where_all_hold_too_much(
    embedded: EmbeddedRocketMQ, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded, and whoever sends whole frames notices nothing."""
    monkeypatch.setattr(server, "HALF_FRAMES_BYTES", 1_200_000)
    address = embedded.broker.address
    async with half_frame(address) as first, half_frame(address) as second, half_frame(address):
        await ended(first)
        assert not second.at_eof()
        assert (await peer.send("T")).code == 0


async def test_a_frame_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 30 seconds, here none; the next scan for idle connections finds it."""
    monkeypatch.setattr(server, "HALF_FRAME_SECONDS", 0.0)
    monkeypatch.setattr(server, "_IDLE_SCAN_SECONDS", 0.05)
    async with embedded_rocketmq() as embedded, half_frame(embedded.broker.address) as reader:
        await ended(reader)


async def test_one_connection_too_many_is_turned_away(
    embedded: EmbeddedRocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others stay."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 0)
    async with half_frame(embedded.broker.address) as reader:
        await ended(reader)
