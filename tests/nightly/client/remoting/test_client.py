"""RemotingClient: one connection for many requests, size limits, and the peer's own requests."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from rmqd.client.remoting.frame_reader import MAX_FRAMES_PER_TURN
from rmqd.client.remoting.peer_requests import MAX_REQUESTS_AT_ONCE
from rmqd.client.remoting.peer_requests import Reply as ClientReply
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.name_server_client import get_route
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import (
    ProtocolError,
)
from rmqd.errors.broker_errors import SystemBusyError
from rmqd.wire.command import RemotingCommand
from tests.client.peer import Peer, Reply
from tests.client.remoting.test_client import ASK, OTHER
from tests.clock import ManualClock
from tests.waiting import eventually


async def test_one_way_requests_of_the_peer_get_no_response(remoting: RemotingClient, peer: Peer) -> None:
    """Unknown requests are not refused either."""
    handled = asyncio.Event()

    async def handler(command: RemotingCommand, address: str) -> ClientReply:
        handled.set()
        return (ResponseCode.SUCCESS, "", {}, b"")

    remoting.peer_requests.handlers[ASK] = handler
    await remoting.connection(peer.address)
    await eventually(lambda: peer.connections, "the peer has the connection")
    await peer.push(ASK, {}, oneway=True)
    await peer.push(RequestCode(4711), {}, oneway=True)
    await handled.wait()
    assert (await remoting.invoke(peer.address, OTHER, {})).code == ResponseCode.SUCCESS
    assert peer.answers == {}


async def test_a_frame_that_is_too_large_is_not_sent(remoting: RemotingClient, peer: Peer) -> None:
    """The peer would close the connection, and all requests on it would fail."""
    with pytest.raises(ProtocolError):
        await remoting.invoke(peer.address, ASK, {}, b"x" * (16 * 1024 * 1024 + 1))
    assert (await remoting.invoke(peer.address, OTHER, {})).code == ResponseCode.SUCCESS
    assert peer.connections == 1


async def test_requests_of_the_peer_above_the_limit_are_refused_as_busy(remoting: RemotingClient, peer: Peer) -> None:
    """Notifications among them are handled anyway."""
    release, noticed = asyncio.Event(), asyncio.Event()

    async def slow(command: RemotingCommand, address: str) -> ClientReply:
        await release.wait()
        return (ResponseCode.SUCCESS, "", {}, b"")

    remoting.peer_requests.handlers[ASK] = slow
    remoting.peer_requests.notice_handlers[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = lambda command, address: (
        noticed.set()
    )
    await remoting.connection(peer.address)
    await eventually(lambda: peer.connections, "the peer has the connection")
    asked = [await peer.push(ASK, {}) for _ in range(MAX_REQUESTS_AT_ONCE + 100)]
    await peer.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {}, oneway=True)
    await eventually(lambda: len(peer.answers) == 100, "the requests above the limit are answered")
    assert {answer.code for answer in peer.answers.values()} == {ResponseCode.SYSTEM_BUSY}
    await noticed.wait()
    release.set()
    await eventually(lambda: len(peer.answers) == len(asked), "the others are answered too")
    assert [peer.answers[opaque].code for opaque in asked[:MAX_REQUESTS_AT_ONCE]] == [
        ResponseCode.SUCCESS
    ] * MAX_REQUESTS_AT_ONCE
    assert (await peer.ask(ASK, {})).code == ResponseCode.SUCCESS, "there is room again"


async def test_thousands_of_frames_are_handled_in_many_turns_of_the_loop(peer: Peer, clock: ManualClock) -> None:
    """Frames keep their order, and the response behind them arrives too. Other tasks can run in between."""
    turn, came = 0, list[tuple[int, int]]()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def flood(command: RemotingCommand) -> Reply:
        for number in range(3000):
            await peer.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"n": str(number)}, oneway=True)
        return Reply()

    peer.on(ASK, flood)
    client = RemotingClient(clock=clock)  # no time passes, so the response behind all frames cannot time out
    client.peer_requests.notice_handlers[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = lambda command, address: (
        came.append((turn, int(command.ext_fields["n"])))
    )
    turns = asyncio.create_task(count_turns())
    await client.invoke(peer.address, ASK, {})
    turns.cancel()
    await client.close()
    assert [number for _, number in came] == list(range(3000))
    assert max(Counter(at for at, _ in came).values()) <= 2 * MAX_FRAMES_PER_TURN, "frames of one turn"


async def test_a_long_remark_is_truncated(peer: Peer) -> None:
    """The remark is in the error's text, and in every log line about the error."""
    peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, Reply(ResponseCode.SYSTEM_BUSY, "because " * 1_000_000))
    client = RemotingClient()
    with pytest.raises(SystemBusyError) as caught:
        await get_route(client, peer.address, "T")
    assert len(str(caught.value)) < 5000
    assert len(caught.value.remark) == 4096
    await client.close()
