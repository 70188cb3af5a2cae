"""The requests to a handler's process, and its responses. All of them are picklable.

The process of a handler, as seen by its parent: one call at a time, with a timeout, and how it ended.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import Final, Literal, Self

from rmqd.config.model.root_model import RootConfig
from rmqd.errors import RmqdError
from rmqd.operate.try_handler.selection import Author, place_of_fault
from rmqd.plugins.child_process import ChildGoneError, NotUsable, WatchedChild, how_it_ended
from rmqd.wire.messages.message import Message

Outcome = Literal["acked", "retried", "dead_lettered", "dropped", "expired", "died"]
"""How a message would be settled. `dropped`: it failed in a broadcasting group, which has no retries."""


@dataclass(frozen=True, slots=True)
class TrialHandlerSpec:
    """The specification of a handler: the handler of the configuration's only group."""

    config: RootConfig
    import_path: tuple[str, ...]
    """The parent's sys.path: the process must find the same handlers."""
    fault_file: str
    """The file for stack traces of a process that crashes or hangs."""


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
    closing: Literal["commit", "rollback"] | None = None
    """The request of a handler of an orderly group with `auto_commit: false`."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The handler was started."""

    author: Author


MODULE: Final = "rmqd.operate.try_handler.trial_main"
START_SECONDS: Final = 300.0
STOP_SECONDS: Final = 30.0


class HandlerUnusableError(RmqdError):
    """The handler cannot be created, started or called, regardless of messages."""


class TrialProcess(WatchedChild):
    """A running process with the handler of a group. Created by `begin`; ended by `end`, or by a crash."""

    name = "handler's process"
    _author = Author("")

    @classmethod
    async def begin(cls, config: RootConfig) -> Self:
        """Start a process with the handler of the configuration's only group. Raises HandlerUnusableError."""
        process = await cls.begin_watched((MODULE,))
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await process.ask("build", TrialHandlerSpec(config, tuple(sys.path), str(process.fault_file)))
        except (ChildGoneError, TimeoutError) as error:
            hangs = isinstance(error, TimeoutError)
            how = f"did not end in {START_SECONDS:g} s" if hangs else f"ended its process: {await process.how()}"
            await process.dispose()
            raise HandlerUnusableError(f"the handler's start {how}") from None
        except asyncio.CancelledError:
            await process.dispose()
            raise
        if isinstance(ready, NotUsable):
            await process.dispose()
            raise HandlerUnusableError(ready.reason)
        assert isinstance(ready, Ready)
        process._author = ready.author
        return process

    async def call(self, messages: list[Message], timeout_seconds: float) -> tuple[CallResult, str | None]:
        """Handle messages of one queue. Raises HandlerUnusableError.

        Returns the result. If the process ended, also returns how: it died, or it was killed because the call exceeded
        the timeout.
        """
        started = time.monotonic()
        try:
            async with asyncio.timeout(timeout_seconds):
                result = await self.ask("call", messages)
        except ChildGoneError:
            how = await self.how()
            return self._failed("died", messages, time.monotonic() - started, f"the process {how}"), how
        except TimeoutError:
            await self.kill_with_stacks()
            late = f"did not end in {timeout_seconds:g} s"
            result = self._failed("expired", messages, time.monotonic() - started, f"the handler {late}")
            return result, f"was killed, because its handler {late}"
        if isinstance(result, NotUsable):
            raise HandlerUnusableError(result.reason)
        assert isinstance(result, CallResult)
        return result, None

    async def end(self) -> str | None:
        """Call the handler's `stop`, and end the process. Returns the problem if this fails, else None."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                answer = await self.ask("stop")
                code = await asyncio.shield(self.reading)
        except ChildGoneError:
            return await self.how()
        except TimeoutError:
            return f"did not end in {STOP_SECONDS:g} s"
        if isinstance(answer, NotUsable):
            return f"raised {answer.reason}"
        return how_it_ended(code) if code else None

    def _failed(
        self, outcome: Literal["died", "expired"], messages: list[Message], seconds: float, error: str
    ) -> CallResult:
        place = place_of_fault(self.faults(), self._author)
        return CallResult((TrialDecision(outcome),) * len(messages), seconds, error, place, is_failure=True)
