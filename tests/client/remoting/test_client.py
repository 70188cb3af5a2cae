"""RemotingClient: one connection for many requests, deadlines, lost and broken connections, the peer's own requests."""

from __future__ import annotations

import asyncio

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.remoting import pending
from rmqd.client.remoting.peer_requests import Reply as ClientReply
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import (
    RemotingClosedError,
    RemotingConnectError,
    RemotingTimeoutError,
    RmqdError,
)
from rmqd.runtime.plain_text import duration
from rmqd.wire.acl import Credentials
from rmqd.wire.command import RemotingCommand, encode_request, encode_response
from tests.client.peer import Peer, Reply
from tests.clock import ManualClock
from tests.waiting import WAIT_SECONDS, eventually

ASK = RequestCode.GET_MAX_OFFSET
OTHER = RequestCode.GET_MIN_OFFSET


async def test_requests_share_a_connection_and_get_their_own_answers(remoting: RemotingClient, peer: Peer) -> None:
    """Answers may arrive in any order; each reaches its caller."""
    waiting: list[asyncio.Event] = [asyncio.Event() for _ in range(10)]

    async def backwards(command: RemotingCommand) -> Reply:
        number = int(command.ext_fields["n"])
        if number + 1 < len(waiting):
            await waiting[number + 1].wait()
        waiting[number].set()
        return Reply(ext_fields={"n": str(number)}, body=command.body)

    peer.on(ASK, backwards)
    asked = [remoting.invoke(peer.address, ASK, {"n": str(number)}, b"%d" % number) for number in range(10)]
    replies = await asyncio.gather(*asked)
    assert [(reply.ext_fields["n"], reply.body) for reply in replies] == [(str(n), b"%d" % n) for n in range(10)]
    assert peer.connections == 1


async def test_an_error_code_is_returned_as_a_response(remoting: RemotingClient, peer: Peer) -> None:
    """The caller decides whether a code is an error."""
    peer.on(ASK, Reply(ResponseCode.TOPIC_NOT_EXIST, "gone"))
    reply = await remoting.invoke(peer.address, ASK, {})
    assert (reply.code, reply.remark) == (ResponseCode.TOPIC_NOT_EXIST, "gone")


async def test_a_response_to_a_cancelled_caller_is_still_handed_over(remoting: RemotingClient, peer: Peer) -> None:
    """This includes a caller that is cancelled by the caller of an earlier response in the same bytes."""
    asked: dict[str, RemotingCommand] = {}
    peer.on(ASK, lambda command: asked.update({command.ext_fields["n"]: command}))
    connection = await remoting.connection(peer.address)
    heard: list[bytes] = []

    async def ask(number: str) -> None:
        response = remoting.call(connection, ASK, {"n": number}, 60.0)
        try:
            await response
        except asyncio.CancelledError:
            connection.pending.hand_over(response, lambda reply: heard.append(number.encode() + reply.body))
            raise

    async def cancel_last() -> None:
        await remoting.call(connection, ASK, {"n": "2"}, 60.0)
        last.cancel()

    first, _canceller, last = (asyncio.create_task(work) for work in (ask("1"), cancel_last(), ask("3")))
    await eventually(lambda: len(asked) == 3, "the peer has the requests")
    first.cancel()
    await asyncio.wait([first])
    answers = b"".join(encode_response(asked[number], 0, body=number.encode()) for number in "123")
    asyncio.get_running_loop().call_soon(connection.data_received, answers)
    await asyncio.wait([last])
    assert sorted(heard) == [b"11", b"33"]


async def test_a_caller_continues_in_the_callback_of_its_response(remoting: RemotingClient, peer: Peer) -> None:
    """Its next request is sent before any other callback runs."""
    asked: list[RemotingCommand] = []
    peer.on(ASK, asked.append)
    connection = await remoting.connection(peer.address)
    events: list[str] = []

    async def ask_twice() -> None:
        for _ in range(2):
            await remoting.call(connection, ASK, {}, 60.0)
            events.append("continued")

    caller = asyncio.create_task(ask_twice())
    for number in range(2):
        await eventually(lambda number=number: len(asked) > number, "the peer has a request")  # type: ignore[misc]
        loop, answer = asyncio.get_running_loop(), encode_response(asked[number], 0)
        loop.call_soon(connection.data_received, answer)
        loop.call_soon(events.append, "the next turn's first callback")
    await caller
    assert events == ["continued", "the next turn's first callback"] * 2


@pytest.mark.parametrize("fault", ["a request that cannot be handled", "a caller that exits"])
async def test_a_fault_does_not_keep_the_callers_of_other_responses_waiting(
    remoting: RemotingClient, peer: Peer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    asked: list[RemotingCommand] = []
    peer.on(ASK, asked.append)
    connection = await remoting.connection(peer.address)
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(type(context["exception"])))
    monkeypatch.setattr(pending, "_raise", lambda error: raised.append(type(error)))

    async def ask(error: type[BaseException] | None) -> None:
        await remoting.call(connection, ASK, {}, 60.0)
        if error is not None:
            raise error

    error = SystemExit if fault == "a caller that exits" else None
    callers = [asyncio.create_task(ask(error)), asyncio.create_task(ask(None))]
    await eventually(lambda: len(asked) == 2, "the peer has the requests")
    data = b"".join(encode_response(request, 0) for request in asked)
    if error is None:
        monkeypatch.setattr(connection._intake, "_on_request", lambda _: 1 // 0)
        data += encode_request(ASK, 7, {}, b"")
    asyncio.get_running_loop().call_soon(connection.data_received, data)
    _, waiting = await asyncio.wait(callers, timeout=WAIT_SECONDS)
    assert not waiting
    await eventually(lambda: raised == [error or ZeroDivisionError], "the event loop has the error")
    assert [type(caller.exception()) for caller in callers] == [error or type(None), type(None)]


async def test_each_request_has_its_own_deadline(clock: ManualClock, peer: Peer) -> None:
    """The shortest deadline ends first although its request was sent last. The connection stays open."""
    remoting = RemotingClient(clock=clock)
    peer.on(ASK, None)
    ended: list[float] = []

    async def ask(timeout_seconds: float) -> None:
        with pytest.raises(RemotingTimeoutError, match=rf"to {ASK.name} \({ASK}\) in {duration(timeout_seconds)}"):
            await remoting.invoke(peer.address, ASK, {}, timeout_seconds=timeout_seconds)
        ended.append(timeout_seconds)

    asked = [asyncio.create_task(ask(seconds)) for seconds in (1.5, 1.0, 0.5)]
    await peer.received(ASK, 3)
    await clock.until(lambda: len(ended) == len(asked), "all have ended")
    assert ended == [0.5, 1.0, 1.5]
    assert (await remoting.invoke(peer.address, OTHER, {})).code == ResponseCode.SUCCESS
    assert peer.connections == 1
    assert remoting.traffic.failures == {(ASK, "timeout"): 3}
    await asyncio.gather(*asked)
    await remoting.close()


async def test_an_answer_after_its_deadline_is_dropped(remoting: RemotingClient, peer: Peer) -> None:
    """It does not affect later requests."""
    release = asyncio.Event()

    async def late() -> Reply:
        await release.wait()
        return Reply(body=b"late")

    peer.on(ASK, lambda _: late())
    with pytest.raises(RemotingTimeoutError):
        await remoting.invoke(peer.address, ASK, {}, timeout_seconds=0.02)
    release.set()
    peer.on(ASK, Reply(body=b"new"))
    assert (await remoting.invoke(peer.address, ASK, {})).body == b"new"


async def test_a_cancelled_request_does_not_affect_later_requests(remoting: RemotingClient, peer: Peer) -> None:
    peer.on(ASK, None)
    cancelled = asyncio.create_task(remoting.invoke(peer.address, ASK, {}))
    await peer.received(ASK)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert (await remoting.invoke(peer.address, OTHER, {})).code == ResponseCode.SUCCESS


async def test_concurrent_callers_share_one_connection_attempt(remoting: RemotingClient, peer: Peer) -> None:
    """The cancellation of one caller does not affect the others."""
    first = asyncio.create_task(remoting.connection(peer.address))
    others = [asyncio.create_task(remoting.connection(peer.address)) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    connections = await asyncio.gather(*others)
    assert len(set(connections)) == 1
    assert peer.connections == 1


async def test_an_unreachable_peer_is_named_and_later_reached_again(remoting: RemotingClient, peer: Peer) -> None:
    """Requests in quick succession fail without another connection attempt."""
    await peer.down()
    for _ in range(3):
        with pytest.raises(RemotingConnectError, match=peer.address):
            await remoting.invoke(peer.address, ASK, {})
    await peer.listen()

    async def reaches() -> bool:
        try:
            await remoting.invoke(peer.address, ASK, {})
        except RemotingConnectError:
            return False
        return True

    async with asyncio.timeout(WAIT_SECONDS):
        while not await reaches():  # noqa: ASYNC110 - the client's own pause is what is waited for
            await asyncio.sleep(0.01)
    assert peer.connections == 1


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:port", "127.0.0.1:99999", ""])
async def test_an_invalid_address_raises_a_connect_error(remoting: RemotingClient, address: str) -> None:
    """It comes from a route or a configuration, so the error is the same as for an unreachable peer."""
    with pytest.raises(RemotingConnectError):
        await remoting.invoke(address, ASK, {})


async def test_a_lost_connection_fails_waiting_requests_and_is_replaced(remoting: RemotingClient, peer: Peer) -> None:
    """The waiting request fails at once, the next request connects again, and both callbacks are called."""
    opened: list[str] = []
    lost: list[tuple[str, str]] = []
    remoting.on_opened.append(opened.append)
    remoting.lost.append(lambda address, reason: lost.append((address, reason)))
    peer.on(ASK, None)
    waiting = asyncio.create_task(remoting.invoke(peer.address, ASK, {}, timeout_seconds=30))
    await peer.received(ASK)
    peer.cut()
    with pytest.raises(RemotingClosedError, match=peer.address):
        await waiting
    assert lost[0][0] == peer.address
    assert remoting.connected(peer.address) is None
    assert (await remoting.invoke(peer.address, OTHER, {})).code == ResponseCode.SUCCESS
    assert opened == [peer.address] * 2
    assert remoting.traffic.failures == {(ASK, "closed"): 1}


async def test_requests_of_the_peer_are_answered_concurrently(remoting: RemotingClient, peer: Peer) -> None:
    """A slow handler delays no other request or answer. Both sides may use the same opaque."""
    release = asyncio.Event()

    async def slow(command: RemotingCommand, address: str) -> ClientReply:
        await release.wait()
        return (ResponseCode.SUCCESS, "", {"from": address}, command.body[::-1])

    async def quick(command: RemotingCommand, address: str) -> ClientReply:
        raise RmqdError("not now")

    remoting.peer_requests.handlers[ASK] = slow
    remoting.peer_requests.handlers[OTHER] = quick
    await remoting.connection(peer.address)
    await eventually(lambda: peer.connections, "the peer has the connection")
    asked = asyncio.create_task(peer.ask(ASK, {}, b"abc"))
    reply = await peer.ask(OTHER, {})
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "not now")
    assert (await remoting.invoke(peer.address, ASK, {})).code == ResponseCode.SUCCESS
    release.set()
    assert (await asked).body == b"cba"
    assert (await asked).ext_fields == {"from": peer.address}


async def test_an_exception_in_a_request_handler_returns_an_error(remoting: RemotingClient, peer: Peer) -> None:
    """Otherwise the broker and an operator's tool would wait until the deadline."""

    async def faulty(command: RemotingCommand, address: str) -> ClientReply:
        raise KeyError("queueId")

    remoting.peer_requests.handlers[ASK] = faulty
    await remoting.connection(peer.address)
    await eventually(lambda: peer.connections, "the peer has the connection")
    reply = await peer.ask(ASK, {})
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "KeyError: 'queueId'")


async def test_signatures_cover_fields_and_body(peer: Peer) -> None:
    """Each request has the access key and its own signature."""
    client = RemotingClient(ClientOptions(access_key="ak", secret_key="sk12345678", security_token="st"))
    await client.invoke(peer.address, ASK, {"n": "1"}, b"body")
    await client.invoke(peer.address, OTHER, {}, b"")
    who = Credentials("ak", "sk12345678", "st")
    assert peer.got(ASK)[0].ext_fields == who.signed({"n": "1"}, b"body")
    assert (await peer.received(OTHER))[0].ext_fields == who.signed({}, b"")
    assert who.signed({"n": "1"}, b"body") != who.signed({"n": "1"}, b"")
    await client.close()


async def test_close_ends_requests_handlers_and_connections(peer: Peer) -> None:
    """Waiting requests fail, handlers are cancelled, and no new connection is opened."""
    client = RemotingClient()
    handling = asyncio.Event()

    async def never(command: RemotingCommand, address: str) -> ClientReply:
        handling.set()
        await asyncio.Event().wait()
        raise AssertionError

    client.peer_requests.handlers[OTHER] = never
    peer.on(ASK, None)
    waiting = asyncio.create_task(client.invoke(peer.address, ASK, {}, timeout_seconds=30))
    await peer.received(ASK)
    await peer.push(OTHER, {})
    await handling.wait()
    await client.close()
    with pytest.raises(RemotingClosedError, match="closed"):
        await waiting
    with pytest.raises(RemotingConnectError, match="closed"):
        await client.invoke(peer.address, ASK, {})
