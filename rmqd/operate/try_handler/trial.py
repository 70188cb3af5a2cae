"""Calls a handler in a separate process, one call at a time and with a timeout, and finds the message that fails.

A trial starts another process after each crash or timeout. The results of calls are picklable.

A bisection is a search with few runs, each in a new process. The first run handles all messages. The failing batch is
the batch during which the process ended or, if it did not end, the first batch that made the handler raise. A second
run with only this batch shows whether the batch fails alone. If it does, the batch is halved until one message is left.
If it does not, an earlier message is involved, and the search looks for the shortest sequence of batches that ends with
this batch and fails.

For n messages the search takes at most 2 + log2(n) runs, rounded up: 16 for 10,000. Runs that are left answer further
questions, such as whether the other messages fail without the message that was found.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Self

from rmqd.config.model.root_model import RootConfig
from rmqd.operate.try_handler.selection import HandlerSource, crashed_line, make_batches
from rmqd.runtime.child_process import ChildGoneError, ChildNotUsableError, ChildProcess, ChildRefusedError
from rmqd.runtime.plain_text import duration
from rmqd.wire.messages.message import Message

Outcome = Literal["acked", "retried", "dead_lettered", "dropped", "expired", "died"]
"""How a message would be settled. `dropped`: it failed in a broadcasting group, which has no retries."""


@dataclass(frozen=True, slots=True)
class TrialDecision:
    """How one message would be settled."""

    outcome: Outcome
    delay_level: int | None = None
    """The delay level of a retry by send-back; None for other outcomes."""
    rest_seconds: float | None = None
    """How long the consumer would wait before a retry in place, such as in an orderly group; None without a wait."""
    reason: str | None = None
    """Why the message would be dead-lettered or dropped; None for other outcomes."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of one call of the handler. `verdicts` are the decisions for each message of the batch, in order."""

    verdicts: tuple[TrialDecision, ...]
    seconds: float
    error: str | None = None
    """The exception that the handler raised, or how the call failed; None if it succeeded."""
    place: str | None = None
    """The source line of the handler that raised, as FILE:LINE in FUNCTION."""
    is_failure: bool = False
    """Whether the call did not end, or raised an exception that is neither a decision nor an invalid body."""
    closing: str | None = None
    """`commit` or `rollback`, as requested by the handler of an orderly group with `auto_commit: false`; else None."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    messages: Sequence[Message]
    result: CallResult
    ended: str | None = None
    """How the process ended during or after this call; None if it continued."""


MODULE: Final = "rmqd.operate.try_handler.trial_main"


class TrialProcess(ChildProcess[None]):
    """A running process with the handler of a group. Created by `build`; ended by `end`, `dispose`, or a crash."""

    _author = HandlerSource("")

    @classmethod
    async def build(cls, config: RootConfig) -> Self:
        """Start a process, and in it the handler of the configuration's only group. Raises ChildNotUsableError."""
        process = await cls.begin(MODULE)
        process._author = await process.ask_to_start("the handler's start", "build", config)
        return process

    async def call(self, messages: list[Message], timeout_seconds: float) -> BatchReport:
        """Call the handler with a batch of one queue. If the call exceeds the timeout, the process is killed.

        Raises ChildNotUsableError if the process cannot call the handler.
        """
        started = time.monotonic()
        outcome: Outcome
        try:
            async with asyncio.timeout(timeout_seconds):
                result: CallResult = await self.ask("call", messages)
        except ChildRefusedError as refusal:
            raise ChildNotUsableError(str(refusal)) from None
        except ChildGoneError:
            outcome, ended = "died", await self.how()
            error = f"the process {ended}"
        except TimeoutError:
            await self.kill_with_stacks()
            outcome, error = "expired", f"the handler did not end in {duration(timeout_seconds)}"
            ended = f"was killed, because its handler did not end in {duration(timeout_seconds)}"
        else:
            return BatchReport(messages, result)
        place = crashed_line(self.thread_stacks(), self._author)
        verdicts = (TrialDecision(outcome),) * len(messages)
        seconds = time.monotonic() - started
        return BatchReport(messages, CallResult(verdicts, seconds, error, place, is_failure=True), ended)


@dataclass(slots=True)
class HandlerTrial:
    """Runs the handler of the configuration's only group in a process. If it dies, the next batch starts another.

    `runs` counts the processes so far. `at_end` is how the last process failed at its end; None if it ended normally.
    """

    _config: RootConfig
    _timeout_seconds: float
    runs: int = 0
    at_end: str | None = None

    async def run(self, batches: Sequence[list[Message]]) -> AsyncGenerator[BatchReport]:
        """Call the handler with each batch, and yield a report after each call. Raises ChildNotUsableError.

        The caller must close the generator if it does not read all reports, because this ends the process.
        """
        process: TrialProcess | None = None
        self.at_end = None
        try:
            for batch in batches:
                if process is None:
                    process = await TrialProcess.build(self._config)
                    self.runs += 1
                report = await process.call(batch, self._timeout_seconds)
                if report.ended is not None:
                    await process.dispose()
                    process = None
                yield report
            if process is not None:
                self.at_end = await process.end()
        finally:
            if process is not None:
                await process.dispose()


Kind = Literal["died", "expired", "raised"]
Answer = Literal["found", "nothing_fails", "not_alone", "not_again"]
"""The kinds of search results. `not_alone`: no single tested message fails, but several together do. `not_again`: the
first run failed, and its repetition did not.
"""


@dataclass(slots=True)
class BisectResult:
    """The result of a search. `together` are messages that fail only together, such as a message and earlier ones."""

    answer: Answer
    runs: int
    messages: int
    kind: Kind | None = None
    report: BatchReport | None = None
    """The last failed run of the message, or of the messages that fail together."""
    message: Message | None = None
    together: Sequence[Message] = field(default_factory=list)
    others_fail: bool | None = None
    """Whether the other messages fail without `message`; None if that was not tried."""
    raised: int = 0
    """How many batches, except the failing one, raised in the first run."""


@dataclass(slots=True)
class Bisection:
    """A search for the message that makes a handler fail. `_report` is called with a line of text after each run."""

    _trial: HandlerTrial
    _size: int
    """The maximum number of messages in a batch."""
    _most_runs: int
    _report: Callable[[str], None]
    _kind: Kind = "raised"

    async def find(self, messages: Sequence[Message]) -> BisectResult:
        """Search for the message, or the messages together, that make the handler fail. Raises ChildNotUsableError."""
        batches = make_batches(messages, self._size)
        failed, raised = await self._first_run(batches)
        if failed is None:
            return self._answer("nothing_fails", messages)
        number, report = failed
        batch = batches[number]
        alone = report if len(batches) == 1 else await self._fails([batch])
        if alone is not None:
            finding = await self._halve(messages, batch, alone)
        else:
            finding = await self._find_beginning(messages, batches[: number + 1], report)
        finding.raised = raised
        if finding.message is not None and len(messages) > 1 and self._has_runs_left:
            others = [one for one in messages if one is not finding.message]
            finding.others_fail = await self._fails(make_batches(others, self._size)) is not None
        finding.runs = self._trial.runs
        return finding

    @property
    def _has_runs_left(self) -> bool:
        return self._trial.runs < self._most_runs

    async def _first_run(self, batches: list[list[Message]]) -> tuple[tuple[int, BatchReport] | None, int]:
        """Handle all batches. Return the failing batch's number and report, or None, and how many others raised."""
        raised: list[tuple[int, BatchReport]] = []
        worst, number = None, -1
        async with aclosing(self._trial.run(batches)) as reports:
            async for report in reports:
                number += 1
                if report.ended is not None:
                    self._kind = "expired" if report.result.verdicts[0].outcome == "expired" else "died"
                    worst = number, report
                    break
                if report.result.is_failure:
                    raised.append((number, report))
        if worst is None and (late := self._at_end(report)) is not None:
            self._kind, worst = "died", (number, late)
        first = worst or (raised[0] if raised else None)
        self._told(sum(map(len, batches)), None if first is None else first[1])
        return first, len(raised) - (worst is None and bool(raised))

    async def _fails(self, batches: list[list[Message]]) -> BatchReport | None:
        """Handle the batches in a new process. Return the first failure of the first run's kind, or None."""
        found = None
        async with aclosing(self._trial.run(batches)) as reports:
            async for report in reports:
                if report.ended is not None or (report.result.is_failure and self._kind == "raised"):
                    found = report
                    break
        if found is None and self._kind == "died":
            found = self._at_end(report)
        self._told(sum(map(len, batches)), found)
        return found

    def _at_end(self, last: BatchReport) -> BatchReport | None:
        """Return the last report as a failure if the process crashed after its last call; None if it ended normally."""
        if self._trial.at_end is None:
            return None
        how = f"after its last call the process {self._trial.at_end}"
        return replace(last, result=replace(last.result, error=how, is_failure=True), ended=self._trial.at_end)

    async def _halve(self, messages: Sequence[Message], batch: list[Message], failed: BatchReport) -> BisectResult:
        """Halve a failing batch until one message is left, and test whether this message fails alone."""
        left, is_proven = batch, True  # `is_proven`: the messages in `left` have failed in a run without others
        while len(left) > 1:
            half = left[: (len(left) + 1) // 2]
            report = await self._fails([half])
            is_proven = report is not None
            if report is None:
                left = left[len(half) :]
            else:
                left, failed = half, report
        if not is_proven:
            report = await self._fails([left])
            if report is None:
                return self._answer("not_alone", messages, failed, together=failed.messages)
            failed = report
        return self._answer("found", messages, failed, message=left[0])

    async def _find_beginning(
        self, messages: Sequence[Message], batches: list[list[Message]], failed: BatchReport
    ) -> BisectResult:
        """Find the shortest sequence of batches that ends with the last batch and fails. Alone, the last succeeds."""
        low, high = 0, len(batches) - 1  # `batches[low:]` fails, `batches[high:]` succeeds
        was_seen_again = False
        while high - low > 1:
            middle = (low + high) // 2
            report = await self._fails(batches[middle:])
            if report is None:
                high = middle
            else:
                low, failed, was_seen_again = middle, report, True
        if not was_seen_again:  # only the first run has failed, maybe not because of the messages
            report = await self._fails(batches[low:])
            if report is None:
                return self._answer("not_again", messages, failed, together=failed.messages)
            failed = report
        together = [one for batch in batches[low:] for one in batch]
        if len(batches[low]) == 1 and self._has_runs_left:
            alone = await self._fails([batches[low]])
            if alone is not None:
                return self._answer("found", messages, alone, message=batches[low][0])
        if len(batches) - low > 2 and self._has_runs_left:
            both = await self._fails([batches[low], batches[-1]])
            if both is not None:
                failed, together = both, [*batches[low], *batches[-1]]
        return self._answer("not_alone", messages, failed, together=together)

    def _answer(
        self,
        answer: Answer,
        messages: Sequence[Message],
        report: BatchReport | None = None,
        *,
        message: Message | None = None,
        together: Sequence[Message] = (),
    ) -> BisectResult:
        kind = None if report is None else self._kind
        return BisectResult(answer, self._trial.runs, len(messages), kind, report, message, together)

    def _told(self, count: int, report: BatchReport | None) -> None:
        how = "nothing fails" if report is None else f"{report.result.error} at {report.messages[0].msg_id}"
        self._report(f"run {self._trial.runs}: {count} message{'' if count == 1 else 's'}: {how}")
