"""The process of a tried handler, as its parent uses it: one call at a time, with a timeout.

The results of calls are picklable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

from rmqd.config.model.root_model import RootConfig
from rmqd.operate.try_handler.selection import Author, place_of_fault
from rmqd.runtime.child_process import ChildGoneError, ChildNotUsableError, ChildProcess, ChildRefusedError
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
    """The result of one batch."""

    messages: Sequence[Message]
    result: CallResult
    ended: str | None = None
    """How its process ended, if it ended."""


MODULE: Final = "rmqd.operate.try_handler.trial_main"


class TrialProcess(ChildProcess[None]):
    """A running process with the handler of a group. Created by `build`; ended by `end`, or by a crash."""

    _author = Author("")

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
            outcome, error = "expired", f"the handler did not end in {timeout_seconds:g} s"
            ended = f"was killed, because its handler did not end in {timeout_seconds:g} s"
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
