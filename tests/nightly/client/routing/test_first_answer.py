"""The first response of several peers, and one call shared by many callers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from rmqd.client.api.remoting_request import SharedCalls
from rmqd.client.routing.name_server_client import first_answer
from rmqd.errors import RemotingClosedError, RemotingConnectError, RmqdError
from rmqd.runtime.clock import SystemClock


class Question:
    """A request to addresses. `asked` has the addresses in order. Addresses in `hanging` never respond."""

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


async def test_no_other_address_is_requested_if_the_first_responds() -> None:
    question = Question()
    assert await first_answer(["a", "b"], question, SystemClock(), patience_seconds=5) == ("a", "from a")
    assert question.asked == ["a"]


async def test_all_other_addresses_are_requested_at_once_after_a_failure() -> None:
    """A second dead address costs no time, because the third is requested at the same time."""
    question = Question(failing="a", hanging="b")
    async with asyncio.timeout(30):
        assert await first_answer(["a", "b", "c"], question, SystemClock(), patience_seconds=60) == ("c", "from c")
    assert question.asked == ["a", "b", "c"]
    assert question.cancelled == ["b"]


async def test_a_silent_address_does_not_delay_the_others() -> None:
    """The others are requested after `patience_seconds`. The silent request is cancelled once one responds."""
    question = Question(hanging={"a"})
    assert await first_answer(["a", "b"], question, SystemClock(), patience_seconds=0.01) == ("b", "from b")
    assert question.cancelled == ["a"]


async def test_the_error_contains_every_failure() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await first_answer(["a", "b"], Question(failing={"a", "b"}), SystemClock(), patience_seconds=5)
    assert [str(error) for error in raised.value.exceptions] == ["a: refused", "b: refused"]


async def test_cancelling_cancels_every_attempt() -> None:
    question = Question(hanging={"a", "b"})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await first_answer(["a", "b"], question, SystemClock(), patience_seconds=0.01)
    assert sorted(question.cancelled) == ["a", "b"]


class Work:
    """Work that runs until `end` is set. `calls` counts its starts."""

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


async def test_waiting_callers_share_one_call_that_starts_after_they_asked() -> None:
    """Callers that arrive during the first call share the second, because the first result may be outdated."""
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
    work = Work()
    coalesced = SharedCalls(work)
    tasks = [asyncio.create_task(coalesced(key)) for key in "ab"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert work.calls == 2
    work.end.set()
    await asyncio.gather(*tasks)


async def test_the_next_caller_repeats_a_cancelled_or_failed_call() -> None:
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


async def test_settled_waits_for_a_running_call_and_starts_none() -> None:
    """It returns at once if no call runs."""
    work = Work()
    coalesced = SharedCalls(work)
    await coalesced.wait_for_earlier("k")
    running = asyncio.create_task(coalesced("k"))
    await asyncio.sleep(0)
    settled = asyncio.create_task(coalesced.wait_for_earlier("k"))
    await asyncio.sleep(0)
    assert not settled.done()
    work.end.set()
    await settled
    assert running.done()
    assert work.calls == 1
