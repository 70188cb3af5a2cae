"""Unanswered commits: for how long each may still replace a later one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rmqd.codes import ResponseCode
from rmqd.consumer.offsets.pending_commits import CLOSED_CONNECTION_SECONDS, HANGING_BROKER_SECONDS, UnansweredCommits
from rmqd.errors import (
    RemotingClosedError,
    RemotingConnectError,
    RemotingTimeoutError,
    RmqdError,
    TlsError,
)
from rmqd.errors.broker_errors import BrokerError
from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock

A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
PEER = "127.0.0.1:10911"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def unanswered(clock: ManualClock) -> UnansweredCommits:
    return UnansweredCommits(clock)


def closed() -> RmqdError:
    return RemotingClosedError(PEER, "the connection ended")


class Late(RemotingTimeoutError):
    """A request that timed out: `tell(True)` reports a late response, `tell(False)` that none will arrive."""

    def __init__(self) -> None:
        super().__init__(PEER, "no answer")
        self.tell: Callable[[bool], None] = self._nobody
        self.on_late = self._register

    def _register(self, callback: Callable[[bool], None]) -> None:
        self.tell = callback

    def _nobody(self, _: bool) -> None:
        raise AssertionError("nobody wants to know")


async def outlived(unanswered: UnansweredCommits, clock: ManualClock, seconds: float) -> tuple[bool, float]:
    """The result of `wait_for_end` for offset 9 of A, and how many seconds it takes."""
    began = clock.monotonic()

    async def wait() -> tuple[bool, float]:
        return await unanswered.wait_for_end(A, 9, began + seconds), clock.monotonic() - began

    waiting = asyncio.create_task(wait())
    await clock.until(waiting.done, "the wait is over")
    return waiting.result()


@pytest.mark.parametrize(
    "error",
    [
        BrokerError(ResponseCode.SYSTEM_BUSY, "not now", PEER),
        RemotingConnectError(PEER, "refused"),
        RemotingTimeoutError(PEER, "it was never sent"),
    ],
    ids=["refused", "not connected", "not sent"],
)
async def test_a_refused_or_undelivered_commit_is_over(
    unanswered: UnansweredCommits, clock: ManualClock, error: RmqdError
) -> None:
    unanswered.record_failed(A, 7, error)
    assert unanswered.offsets(A) == frozenset()
    assert await outlived(unanswered, clock, 60) == (False, 0)


@pytest.mark.parametrize("error", [closed(), TlsError(PEER, "the connection ended")])
async def test_a_commit_on_a_closed_connection_may_be_stored_for_two_seconds(
    unanswered: UnansweredCommits, clock: ManualClock, error: RmqdError
) -> None:
    unanswered.record_failed(A, 7, error)
    assert unanswered.offsets(A) == {7}
    assert not unanswered.offsets(B)
    assert await outlived(unanswered, clock, 60) == (True, CLOSED_CONNECTION_SECONDS)


async def test_a_commit_without_a_response_may_be_stored_for_thirty_seconds(
    unanswered: UnansweredCommits, clock: ManualClock
) -> None:
    unanswered.record_failed(A, 7, Late())
    assert unanswered.offsets(A) == {7}
    assert await outlived(unanswered, clock, 60) == (True, HANGING_BROKER_SECONDS)


@pytest.mark.parametrize(("is_answered", "longer"), [(True, 0.0), (False, CLOSED_CONNECTION_SECONDS)])
async def test_a_late_response_or_a_closed_connection_ends_the_wait(
    unanswered: UnansweredCommits, clock: ManualClock, is_answered: bool, longer: float
) -> None:
    late = Late()
    unanswered.record_failed(A, 7, late)
    clock.call_later(3.0, late.tell, is_answered)
    assert await outlived(unanswered, clock, 60) == (True, 3.0 + longer)


async def test_a_closed_connection_does_not_extend_the_wait(unanswered: UnansweredCommits, clock: ManualClock) -> None:
    late = Late()
    unanswered.record_failed(A, 7, late)
    clock.call_later(HANGING_BROKER_SECONDS - 1.0, late.tell, False)
    assert await outlived(unanswered, clock, 60) == (True, HANGING_BROKER_SECONDS)


async def test_the_wait_ends_with_the_last_of_several_commits(
    unanswered: UnansweredCommits, clock: ManualClock
) -> None:
    first, second = Late(), Late()
    unanswered.record_failed(A, 7, first)
    unanswered.record_failed(A, 8, second)
    clock.call_later(1.0, first.tell, True)
    clock.call_later(4.0, second.tell, True)
    assert await outlived(unanswered, clock, 60) == (True, 4.0)


async def test_the_wait_ends_at_its_deadline(unanswered: UnansweredCommits, clock: ManualClock) -> None:
    unanswered.record_failed(A, 7, closed())
    unanswered.record_failed(A, 8, Late())
    assert await outlived(unanswered, clock, 5.0) == (False, 5.0)


async def test_a_commit_of_the_same_offset_is_not_waited_for(unanswered: UnansweredCommits, clock: ManualClock) -> None:
    unanswered.record_failed(A, 9, Late())
    assert await outlived(unanswered, clock, 60) == (False, 0)


async def test_an_ended_commit_is_forgotten_after_a_later_read_of_the_offset(
    unanswered: UnansweredCommits, clock: ManualClock
) -> None:
    """An earlier read may have been overtaken by the commit."""
    asked_at = clock.monotonic()
    unanswered.record_failed(A, 7, closed())
    unanswered.record_failed(A, 8, Late())
    clock.turn(CLOSED_CONNECTION_SECONDS)
    unanswered.record_stored(A, asked_at)
    assert unanswered.offsets(A) == {7, 8}
    unanswered.record_stored(A, clock.monotonic())
    assert unanswered.offsets(A) == {8}
    clock.turn(HANGING_BROKER_SECONDS)
    unanswered.record_stored(A, clock.monotonic())
    assert unanswered.offsets(A) == frozenset()


def test_the_wait_times_are_two_and_thirty_seconds() -> None:
    """After the longer one, a hanging broker has lost its clients anyway."""
    assert (CLOSED_CONNECTION_SECONDS, HANGING_BROKER_SECONDS) == (2.0, 30.0)
