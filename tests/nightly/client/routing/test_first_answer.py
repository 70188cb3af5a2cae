"""Asking several peers the same question, and sharing one call among many askers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from rmqd.client.api.remoting_request import SharedCalls
from rmqd.client.routing.name_server_client import first_answer
from rmqd.errors import RemotingClosedError, RemotingConnectError, RmqdError
from rmqd.runtime.clock import SystemClock


class Question:
    """Answers by address; `asked` has the addresses in order, `hanging` those that never answer."""

    def __init__(self, failing: Collection[str] = (), hanging: Collection[str] = ()) -> None:
        self.failing = failing
        self.hanging = hanging
        self.asked: list[str] = []
        self.cancelled: list[str] = []

    async def __call__(self, address: str) -> str:
        self.asked.append(address)
        if address in self.failing:
            raise RemotingConnectError(address, "refused")
        if address in self.hanging:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.append(address)
        return f"from {address}"


async def test_others_are_left_alone_while_the_first_answers() -> None:
    """No needless load on the others."""
    question = Question()
    assert await first_answer(["a", "b"], question, SystemClock(), patience_seconds=5) == ("a", "from a")
    assert question.asked == ["a"]


async def test_all_others_are_asked_at_once_after_a_failure() -> None:
    """A second dead one costs nothing more, because the third is asked together with it."""
    question = Question(failing="a", hanging="b")
    async with asyncio.timeout(30):
        assert await first_answer(["a", "b", "c"], question, SystemClock(), patience_seconds=60) == ("c", "from c")
    assert question.asked == ["a", "b", "c"]
    assert question.cancelled == ["b"]


async def test_a_silent_one_is_not_waited_for() -> None:
    """After the patience the others are asked; the silent one is cancelled when one of them answers."""
    question = Question(hanging={"a"})
    assert await first_answer(["a", "b"], question, SystemClock(), patience_seconds=0.01) == ("b", "from b")
    assert question.cancelled == ["a"]


async def test_every_failure_is_told() -> None:
    """Where nobody answers, each one's reason is there."""
    with pytest.raises(ExceptionGroup) as raised:
        await first_answer(["a", "b"], Question(failing={"a", "b"}), SystemClock(), patience_seconds=5)
    assert [str(error) for error in raised.value.exceptions] == ["a: refused", "b: refused"]


async def test_a_cancelled_question_leaves_nothing_behind() -> None:
    """The caller's cancellation reaches every attempt."""
    question = Question(hanging={"a", "b"})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await first_answer(["a", "b"], question, SystemClock(), patience_seconds=0.01)
    assert sorted(question.cancelled) == ["a", "b"]


class Work:
    """Work that ends when the test says so; `calls` counts how often it began."""

    def __init__(self) -> None:
        self.calls = 0
        self.end = asyncio.Event()
        self.errors: list[RmqdError] = []

    async def __call__(self, key: str) -> int:
        self.calls += 1
        number = self.calls
        await self.end.wait()
        if self.errors:
            raise self.errors.pop()
        return number


async def test_a_crowd_shares_one_call_that_began_after_it_asked() -> None:
    """The first runs alone; those that came while it ran share the second call, for the first may be too old."""
    work = Work()
    coalesced = SharedCalls(work)
    first = asyncio.create_task(coalesced("k"))
    await asyncio.sleep(0)
    crowd = [asyncio.create_task(coalesced("k")) for _ in range(10)]
    await asyncio.sleep(0)
    assert coalesced.is_running("k")
    work.end.set()
    assert await first == 1
    assert await asyncio.gather(*crowd) == [2] * 10
    assert not coalesced.is_running("k")


async def test_keys_do_not_wait_for_each_other() -> None:
    """A slow key is nobody else's business."""
    work = Work()
    coalesced = SharedCalls(work)
    tasks = [asyncio.create_task(coalesced(key)) for key in "ab"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert work.calls == 2
    work.end.set()
    await asyncio.gather(*tasks)


async def test_the_next_one_takes_over_from_a_cancelled_or_failed_call() -> None:
    """Whoever does the work may go away; the others get their answer all the same."""
    work = Work()
    coalesced = SharedCalls(work)
    cancelled, failed, last = (asyncio.create_task(coalesced("k")) for _ in range(3))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    work.errors.append(RemotingClosedError("a", "cut"))
    work.end.set()
    with pytest.raises(RemotingClosedError):
        await failed
    assert await last == 3


async def test_settled_waits_for_what_is_under_way_and_starts_nothing() -> None:
    """It ends after the running call, and at once where there is none."""
    work = Work()
    coalesced = SharedCalls(work)
    await coalesced.settled("k")
    running = asyncio.create_task(coalesced("k"))
    await asyncio.sleep(0)
    settled = asyncio.create_task(coalesced.settled("k"))
    await asyncio.sleep(0)
    assert not settled.done()
    work.end.set()
    await settled
    assert running.done()
    assert work.calls == 1
