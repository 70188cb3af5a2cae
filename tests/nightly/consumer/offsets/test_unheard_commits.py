"""Commits without an answer: for how long each of them may still replace a later one."""

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
def unheard(clock: ManualClock) -> UnansweredCommits:
    return UnansweredCommits(clock)


def closed() -> RmqdError:
    return RemotingClosedError(PEER, "the connection ended")


class Late(RemotingTimeoutError):
    """A request that ran into its deadline, and may be answered later: `tell(True)`, or not: `tell(False)`."""

    def __init__(self) -> None:
        super().__init__(PEER, "no answer")
        self.tell: Callable[[bool], None] = self._nobody
        self.on_late = self._register

    def _register(self, callback: Callable[[bool], None]) -> None:
        self.tell = callback

    def _nobody(self, _: bool) -> None:
        raise AssertionError("nobody wants to know")


async def outlived(unheard: UnansweredCommits, clock: ManualClock, seconds: float) -> tuple[bool, float]:
    """What `over` answers for offset 9 of A, and how many seconds that takes."""
    began = clock.monotonic()

    async def wait() -> tuple[bool, float]:
        return await unheard.wait_for_end(A, 9, began + seconds), clock.monotonic() - began

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
async def test_what_the_broker_has_not_got_or_has_refused_is_over(
    unheard: UnansweredCommits, clock: ManualClock, error: RmqdError
) -> None:
    unheard.failed(A, 7, error)
    assert unheard.offsets(A) == frozenset()
    assert await outlived(unheard, clock, 60) == (False, 0)


@pytest.mark.parametrize("error", [closed(), TlsError(PEER, "the connection ended")])
async def test_what_was_read_of_a_connection_that_ended_may_be_stored_for_a_moment(
    unheard: UnansweredCommits, clock: ManualClock, error: RmqdError
) -> None:
    unheard.failed(A, 7, error)
    assert unheard.offsets(A) == {7}
    assert not unheard.offsets(B)
    assert await outlived(unheard, clock, 60) == (True, CLOSED_CONNECTION_SECONDS)


async def test_one_that_nothing_is_heard_of_may_be_stored_for_long(
    unheard: UnansweredCommits, clock: ManualClock
) -> None:
    unheard.failed(A, 7, Late())
    assert unheard.offsets(A) == {7}
    assert await outlived(unheard, clock, 60) == (True, HANGING_BROKER_SECONDS)


@pytest.mark.parametrize(("is_answered", "longer"), [(True, 0.0), (False, CLOSED_CONNECTION_SECONDS)])
async def test_one_whose_end_is_heard_is_waited_for_no_longer(
    unheard: UnansweredCommits, clock: ManualClock, is_answered: bool, longer: float
) -> None:
    """An answer that comes late, or the end of the connection."""
    late = Late()
    unheard.failed(A, 7, late)
    clock.call_later(3.0, late.tell, is_answered)
    assert await outlived(unheard, clock, 60) == (True, 3.0 + longer)


async def test_one_whose_end_is_heard_is_not_waited_for_longer_than_before(
    unheard: UnansweredCommits, clock: ManualClock
) -> None:
    late = Late()
    unheard.failed(A, 7, late)
    clock.call_later(HANGING_BROKER_SECONDS - 1.0, late.tell, False)
    assert await outlived(unheard, clock, 60) == (True, HANGING_BROKER_SECONDS)


async def test_the_last_of_several_is_waited_for(unheard: UnansweredCommits, clock: ManualClock) -> None:
    first, second = Late(), Late()
    unheard.failed(A, 7, first)
    unheard.failed(A, 8, second)
    clock.call_later(1.0, first.tell, True)
    clock.call_later(4.0, second.tell, True)
    assert await outlived(unheard, clock, 60) == (True, 4.0)


async def test_nobody_waits_beyond_his_time(unheard: UnansweredCommits, clock: ManualClock) -> None:
    unheard.failed(A, 7, closed())
    unheard.failed(A, 8, Late())
    assert await outlived(unheard, clock, 5.0) == (False, 5.0)


async def test_one_with_the_same_offset_does_no_harm(unheard: UnansweredCommits, clock: ManualClock) -> None:
    unheard.failed(A, 9, Late())
    assert await outlived(unheard, clock, 60) == (False, 0)


async def test_what_is_over_is_forgotten_once_the_offset_was_seen_stored_afterwards(
    unheard: UnansweredCommits, clock: ManualClock
) -> None:
    """What was asked before may have been overtaken."""
    asked_at = clock.monotonic()
    unheard.failed(A, 7, closed())
    unheard.failed(A, 8, Late())
    clock.turn(CLOSED_CONNECTION_SECONDS)
    unheard.stored(A, asked_at)
    assert unheard.offsets(A) == {7, 8}
    unheard.stored(A, clock.monotonic())
    assert unheard.offsets(A) == {8}
    clock.turn(HANGING_BROKER_SECONDS)
    unheard.stored(A, clock.monotonic())
    assert unheard.offsets(A) == frozenset()


def test_a_broker_gets_these_times() -> None:
    """A commit that takes longer than its broker's clients live has no effect any more."""
    assert (CLOSED_CONNECTION_SECONDS, HANGING_BROKER_SECONDS) == (2.0, 30.0)
