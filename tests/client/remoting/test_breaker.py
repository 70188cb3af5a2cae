"""Circuit breakers: requests to a silent peer fail at once, and only one request at a time probes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmqd.client.remoting.connector import FIRST_SECONDS, MAX_SECONDS, Breakers
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode
from rmqd.consumer.rebalance.membership import MISSING_MEMBER_SECONDS
from rmqd.errors import CircuitOpenError, RemotingConnectError, RemotingError, RemotingTimeoutError, TlsError
from rmqd.wire.command import RemotingCommand
from tests.client.peer import Peer, Reply
from tests.clock import ManualClock
from tests.waiting import eventually

ASK = RequestCode.GET_MAX_OFFSET
OTHER = RequestCode.GET_MIN_OFFSET
HOST = "10.0.0.1:10911"


@pytest.fixture
def breakers(clock: ManualClock) -> Breakers:
    return Breakers(clock)


@pytest.fixture
async def remoting(flowing: ManualClock) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=flowing)
    yield client
    await client.close()


def failure() -> RemotingError:
    return RemotingTimeoutError(HOST, "it is silent")


def pause_seconds(breakers: Breakers, clock: ManualClock) -> float:
    """Measure the remaining pause of the address."""
    began = clock.monotonic()
    while True:
        try:
            breakers.raise_during_pause(HOST)
        except CircuitOpenError:
            clock.turn(0.001)
        else:
            return clock.monotonic() - began


async def go_silent(remoting: RemotingClient, peer: Peer) -> asyncio.Event:
    """Let a request time out; the returned event releases the answers to all such requests."""
    answered = asyncio.Event()

    async def late(_: RemotingCommand) -> Reply:
        await answered.wait()
        return Reply()

    peer.on(ASK, late)
    with pytest.raises(RemotingTimeoutError):
        await remoting.invoke(peer.address, ASK, {})
    return answered


def test_pauses_grow_to_a_limit_and_differ(breakers: Breakers, clock: ManualClock) -> None:
    """Clients that lost a broker together must not all reconnect together."""
    pauses = []
    for _ in range(12):
        breakers.record_failure(HOST, failure())
        pauses.append(pause_seconds(breakers, clock))
    assert FIRST_SECONDS / 2 <= pauses[0] <= FIRST_SECONDS + 0.01
    assert all(MAX_SECONDS / 2 <= pause <= MAX_SECONDS + 0.01 for pause in pauses[6:])
    assert len({round(pause, 2) for pause in pauses[6:]}) > 1


def test_an_address_with_breaking_connections_is_tried_again_soon(breakers: Breakers, clock: ManualClock) -> None:
    """A broker removes a member with its connection, and other members soon acquire the member's queues."""
    breakers.record_break(HOST, failure())
    assert not breakers.is_open(HOST)
    for _ in range(12):
        breakers.record_break(HOST, failure())
        assert 0 < pause_seconds(breakers, clock) < MISSING_MEMBER_SECONDS
        breakers.answered(HOST)
    breakers.record_failure(HOST, failure())
    assert pause_seconds(breakers, clock) <= FIRST_SECONDS + 0.01


def test_one_probe_at_a_time(breakers: Breakers, clock: ManualClock) -> None:
    breakers.record_failure(HOST, failure())
    with pytest.raises(CircuitOpenError, match="it is silent"), breakers.probe(HOST):
        pytest.fail("the pause is not over")
    clock.turn(MAX_SECONDS)
    with breakers.probe(HOST), pytest.raises(CircuitOpenError), breakers.probe(HOST):
        pytest.fail("it is probed already")
    with breakers.probe(HOST):  # the first probe ended without a result
        breakers.answered(HOST)
    assert not breakers.is_open(HOST)
    with breakers.probe(HOST), breakers.probe(HOST):
        pass


def test_long_requests_fail_until_another_request_is_answered(breakers: Breakers, clock: ManualClock) -> None:
    breakers.record_failure(HOST, failure())
    clock.turn(MAX_SECONDS)
    breakers.raise_during_pause(HOST)
    with pytest.raises(CircuitOpenError):
        breakers.raise_until_responding(HOST)
    breakers.answered(HOST)
    breakers.raise_until_responding(HOST)


def test_a_tls_error_is_raised_again_during_the_pause(breakers: Breakers) -> None:
    breakers.record_failure(HOST, TlsError(HOST, "its certificate is not for this host"))
    with pytest.raises(TlsError, match="its certificate"):
        breakers.raise_during_pause(HOST)


def test_one_lost_connection_does_not_open_the_circuit(breakers: Breakers) -> None:
    assert not breakers.lost(HOST)
    assert not breakers.is_open(HOST)
    assert breakers.lost(HOST)


async def test_only_the_first_request_waits_for_a_silent_peer(remoting: RemotingClient, peer: Peer) -> None:
    peer.on(ASK, None)
    told: list[str] = []
    remoting.silent.append(told.append)
    with pytest.raises(RemotingTimeoutError):
        await remoting.invoke(peer.address, ASK, {})
    assert told == [peer.address]
    assert remoting.is_down(peer.address)
    with pytest.raises(CircuitOpenError, match="silent"):
        await remoting.invoke(peer.address, OTHER, {}, timeout_seconds=60)
    with pytest.raises(CircuitOpenError):
        remoting.breakers.raise_until_responding(peer.address)
    assert len(peer.requests) == 1
    assert remoting.connected(peer.address) is not None, "it may only be slow: the waiting requests continue to wait"


async def test_a_silent_peer_is_probed_and_its_first_answer_closes_the_circuit(
    remoting: RemotingClient, peer: Peer
) -> None:
    answered = await go_silent(remoting, peer)

    async def probe() -> None:
        while True:
            try:
                await remoting.invoke(peer.address, ASK, {}, timeout_seconds=30)
            except CircuitOpenError:
                await remoting.clock.sleep(0.1)
            else:
                return

    probes = [asyncio.create_task(probe()) for _ in range(5)]
    await eventually(lambda: len(peer.requests) == 2, "one probe is sent")
    await remoting.clock.sleep(10)
    assert len(peer.requests) == 2
    answered.set()
    await asyncio.gather(*probes)
    assert not remoting.is_down(peer.address)
    assert peer.connections == 2, "the probe used its own connection"


async def test_a_late_answer_closes_the_circuit(remoting: RemotingClient, peer: Peer) -> None:
    """A process that was suspended for a while still answers the requests that it has received."""
    answered = await go_silent(remoting, peer)
    assert remoting.is_down(peer.address)
    answered.set()
    await eventually(lambda: not remoting.is_down(peer.address), "the circuit is closed")


async def test_a_timeout_between_other_answers_does_not_open_the_circuit(remoting: RemotingClient, peer: Peer) -> None:
    peer.on(ASK, None)
    slow = asyncio.create_task(remoting.invoke(peer.address, ASK, {}, timeout_seconds=2.5))
    await peer.received(ASK)
    await remoting.invoke(peer.address, OTHER, {})
    with pytest.raises(RemotingTimeoutError):
        await slow
    assert not remoting.is_down(peer.address)


async def test_a_deadline_of_the_caller_opens_the_circuit_too(remoting: RemotingClient, peer: Peer) -> None:
    peer.on(ASK, None)
    with pytest.raises(TimeoutError):
        async with remoting.clock.timeout(3):
            await remoting.invoke(peer.address, ASK, {}, timeout_seconds=30)
    assert remoting.is_down(peer.address)


async def test_a_silence_counts_as_one_failure_for_all_waiting_requests(remoting: RemotingClient, peer: Peer) -> None:
    """The pulls of all queues wait together and are cancelled when a heartbeat finds the silence."""
    peer.on(ASK, None)
    peer.on(OTHER, None)
    waiting = [asyncio.create_task(remoting.invoke(peer.address, ASK, {}, timeout_seconds=30)) for _ in range(6)]
    await peer.received(ASK, 6)
    with pytest.raises(RemotingTimeoutError):
        await remoting.invoke(peer.address, OTHER, {})
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert 0 < remoting.breakers.remaining_pause_seconds(peer.address) <= FIRST_SECONDS


async def test_a_silent_peer_is_still_only_probed_after_a_reconnect(remoting: RemotingClient, peer: Peer) -> None:
    """The kernel accepts connections for a suspended process."""
    await go_silent(remoting, peer)
    peer.cut()
    await eventually(lambda: remoting.connected(peer.address) is None, "the connection is lost")

    async def first() -> None:
        while True:
            try:
                await remoting.invoke(peer.address, ASK, {}, timeout_seconds=2.5)
            except CircuitOpenError:
                await remoting.clock.sleep(0.1)

    probe = asyncio.create_task(first())
    await peer.received(ASK, 2)
    with pytest.raises(CircuitOpenError):
        await remoting.invoke(peer.address, OTHER, {}, timeout_seconds=60)
    with pytest.raises(RemotingTimeoutError):
        await probe


async def test_the_first_answer_of_a_restarted_peer_closes_the_circuit(remoting: RemotingClient, peer: Peer) -> None:
    await peer.down()
    with pytest.raises(RemotingConnectError):
        await remoting.invoke(peer.address, ASK, {})
    assert remoting.is_down(peer.address)
    await peer.listen()
    for _ in range(500):
        try:
            await remoting.invoke(peer.address, ASK, {})
        except CircuitOpenError:
            await remoting.clock.sleep(0.1)
        else:
            break
    assert not remoting.is_down(peer.address)
