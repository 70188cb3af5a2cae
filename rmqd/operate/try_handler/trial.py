"""Tries a handler in its own process: one call at a time, with a timeout; and finds the one message that fails.

A trial starts as many processes as needed, and reports how each ended. The results of calls are picklable.

A bisection needs few runs of the process. The first run handles everything, in as many processes as needed. The failing
batch is the batch during which the process ended or, if it did not end, the batch of the first exception. A run with
only this batch shows whether it fails alone. If so, it is halved. If not, an earlier message is involved, and the
search looks for the latest start such that the messages up to the batch still fail.

For n messages this takes at most 2 + log2(n) runs, rounded up: 16 for 10,000. Remaining runs answer further questions,
such as whether the other messages fail without it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Self

from rmqd.config.model.root_model import RootConfig
from rmqd.operate.try_handler.selection import HandlerSource, make_batches, place_of_fault
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
    """For a retry by a broker."""
    rest_seconds: float | None = None
    """For a retry in place in an orderly group: how long the queue would be suspended before it."""
    reason: str | None = None
    """For a dead letter."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call, and how it would settle each message of its batch."""

    verdicts: tuple[TrialDecision, ...]
    seconds: float
    error: str | None = None
    """The handler's exception."""
    place: str | None = None
    """The source line of the handler that raised, as FILE:LINE in FUNCTION."""
    is_failure: bool = False
    """Whether it raised an exception other than Retry, DeadLetter or Suspend, or did not end."""
    closing: str | None = None
    """The request of a handler of an orderly group with `auto_commit: false`: commit or rollback."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    messages: Sequence[Message]
    result: CallResult
    ended: str | None = None
    """How its process ended, if it ended."""


MODULE: Final = "rmqd.operate.try_handler.trial_main"


class TrialProcess(ChildProcess[None]):
    """A running process with the handler of a group. Created by `build`; ended by `end`, or by a crash."""

    _author = HandlerSource("")

    @classmethod
    async def build(cls, config: RootConfig) -> Self:
        """Start a process with the handler of the configuration's only group. Raises ChildNotUsableError."""
        process = await cls.begin(MODULE)
        process._author = await process.ask_to_start("the handler's start", "build", config)
        return process

    async def call(self, messages: list[Message], timeout_seconds: float) -> BatchReport:
        """Handle messages of one queue. If the call exceeds the timeout, the process is killed.

        Raises ChildNotUsableError.
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
        place = place_of_fault(self.faults(), self._author)
        verdicts = (TrialDecision(outcome),) * len(messages)
        seconds = time.monotonic() - started
        return BatchReport(messages, CallResult(verdicts, seconds, error, place, is_failure=True), ended)


@dataclass(slots=True)
class HandlerTrial:
    """The handler of the configuration's only group, in as many processes as needed: if one dies, the next one starts.

    `runs` counts the processes so far. `at_end` is the problem at the end of the last one.
    """

    _config: RootConfig
    _timeout_seconds: float
    runs: int = 0
    at_end: str | None = None

    async def run(self, batches: Sequence[list[Message]]) -> AsyncGenerator[BatchReport]:
        """Handle batches, and yield a report when each call has ended. Raises ChildNotUsableError.

        The caller must close the generator if it does not read everything.
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
"""`not_alone`: messages fail together, but no tested one fails alone. `not_again`: the failure of the first run did not
recur.
"""


@dataclass(slots=True)
class BisectResult:
    """The result. `together` are messages that only fail together, or that must precede the failing message."""

    answer: Answer
    runs: int
    messages: int
    kind: Kind | None = None
    report: BatchReport | None = None
    """The last failed run of the message, or of the messages that fail together."""
    message: Message | None = None
    together: Sequence[Message] = field(default_factory=list)
    others_fail: bool | None = None
    """Whether the others fail without it; None if that was not tried."""
    raised: int = 0
    """How many other batches raised in the first run."""


@dataclass(slots=True)
class Bisection:
    """One search. `_report` receives one line for each run."""

    _trial: HandlerTrial
    _size: int
    """The messages in a batch."""
    _most_runs: int
    _report: Callable[[str], None]
    _kind: Kind = "raised"

    async def find(self, messages: Sequence[Message]) -> BisectResult:
        """Search for the messages that fail. Raises ChildNotUsableError."""
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
        """Return the first failure of the worst kind with its batch number, and how many other batches raised."""
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
        """Handle the batches in a new process. Returns the first failure of the expected kind, or None."""
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
        """Return a report if the process failed after the last call; None if it ended normally."""
        if self._trial.at_end is None:
            return None
        how = f"after its last call the process {self._trial.at_end}"
        return replace(last, result=replace(last.result, error=how, is_failure=True), ended=self._trial.at_end)

    async def _halve(self, messages: Sequence[Message], batch: list[Message], failed: BatchReport) -> BisectResult:
        """Search for the message of a batch that fails alone."""
        left, is_proven = batch, True  # whether the remaining messages were seen to fail alone
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
        """Search for the latest batch such that all batches from it to the last one still fail. The last one alone does
        not.
        """
        low, high = 0, len(batches) - 1  # the batches from `low` on fail, those from `high` on succeed
        was_seen_again = False
        while high - low > 1:
            middle = (low + high) // 2
            report = await self._fails(batches[middle:])
            if report is None:
                high = middle
            else:
                low, failed, was_seen_again = middle, report, True
        if not was_seen_again:  # the failure may be unrelated to the messages
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
