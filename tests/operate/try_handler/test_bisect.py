"""The search for the one message on which a handler fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rmqd.operate.try_handler.trial import (
    BatchReport,
    Bisection,
    BisectResult,
    CallResult,
    HandlerTrial,
    TrialDecision,
)
from rmqd.testing import make_message
from rmqd.wire.messages.message import Message

MAX_MESSAGES = 10_000
MAX_RUNS = 16

Fails = Callable[[Sequence[int], Sequence[int]], bool]
"""Whether a call fails, by the numbers of its messages and of those that its process had before."""


@cache
def message(number: int) -> Message:
    return make_message(keys=str(number), queue_offset=number)


class ScriptedRuns(HandlerTrial):
    """Runs whose processes end, or whose calls raise, according to a rule."""

    def __init__(self, fails: Fails, *, ends: bool = True, at_end: Callable[[], str | None] = lambda: None) -> None:
        self.runs = 0
        self.at_end: str | None = None
        self._fails = fails
        self._ends = ends
        self._at_end = at_end

    async def run(self, batches: Sequence[list[Message]]) -> AsyncGenerator[BatchReport]:
        self.runs += 1
        before: list[int] = []
        for batch in batches:
            numbers = [one.queue_offset for one in batch]
            is_failure = self._fails(numbers, before)
            ended = "ended with exit code 3" if is_failure and self._ends else None
            verdict = TrialDecision("acked" if not is_failure else "died" if ended else "retried")
            yield BatchReport(batch, CallResult((verdict,) * len(batch), 0.0, is_failure=is_failure), ended)
            before.extend(numbers)
            if ended:
                before.clear()
        self.at_end = self._at_end()


def find(fails: Fails, count: int, batch_size: int = 1, **how: Any) -> BisectResult:
    runs = ScriptedRuns(fails, **how)
    search = Bisection(runs, batch_size, MAX_RUNS, lambda line: None)
    return asyncio.run(search.find([message(number) for number in range(count)]))


@settings(deadline=None, max_examples=25)
@given(
    count=st.one_of(st.integers(1, 40), st.just(MAX_MESSAGES)),
    batch_size=st.sampled_from([1, 2, 32, 1000, 1024, MAX_MESSAGES]),
    where=st.floats(0, 1, exclude_max=True),
    ends=st.booleans(),
)
def test_one_message_is_found_in_at_most_16_runs(count: int, batch_size: int, where: float, ends: bool) -> None:
    """At any position and batch size, whether the process ends or the handler raises."""
    poison = int(where * count)
    finding = find(lambda batch, before: poison in batch, count, batch_size, ends=ends)
    assert (finding.answer, finding.kind) == ("found", "died" if ends else "raised")
    assert finding.message is message(poison)
    assert finding.runs <= MAX_RUNS
    assert not finding.others_fail


def test_a_process_that_dies_at_a_message_takes_three_runs() -> None:
    """The first run suggests the message. The third run shows that the other messages do not fail."""
    finding = find(lambda batch, before: 7000 in batch, MAX_MESSAGES)
    assert (finding.message, finding.runs, finding.others_fail) == (message(7000), 3, False)


def test_no_message_is_found_if_nothing_fails() -> None:
    finding = find(lambda batch, before: False, 100)
    assert (finding.answer, finding.runs, finding.message) == ("nothing_fails", 1, None)


def test_the_end_of_a_process_has_precedence_over_exceptions() -> None:
    """Many messages may raise. The result has their number."""

    class Both(ScriptedRuns):
        async def run(self, batches: Sequence[list[Message]]) -> AsyncGenerator[BatchReport]:
            async for report in super().run(batches):
                number = report.messages[0].queue_offset
                if report.ended is None and number % 3 == 0:
                    yield BatchReport(report.messages, CallResult((TrialDecision("retried"),), 0.0, is_failure=True))
                else:
                    yield report

    runs = Both(lambda batch, before: 50 in batch)
    search = Bisection(runs, 1, MAX_RUNS, lambda line: None)
    finding = asyncio.run(search.find([message(number) for number in range(100)]))
    assert (finding.kind, finding.message, finding.raised) == ("died", message(50), 17)
