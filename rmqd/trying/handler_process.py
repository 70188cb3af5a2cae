"""The process of a handler, as seen by its parent: one call at a time, with a timeout, and how it ended."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final, Literal, Self

from rmqd.config.model.root import RootConfig
from rmqd.errors import RmqdError
from rmqd.process.child import ChildGoneError
from rmqd.process.watched_child import NotUsable, WatchedChild, how_it_ended
from rmqd.trying.order import CallResult, HandlerOrder, Ready, Verdict
from rmqd.trying.places import Author, place_of_fault
from rmqd.wire.messages.message import Message

MODULE: Final = "rmqd.trying.handler_main"
START_SECONDS: Final = 300.0
STOP_SECONDS: Final = 30.0


class HandlerUnusableError(RmqdError):
    """The handler cannot be created, started or called, regardless of messages."""


class HandlerProcess(WatchedChild):
    """A running process with the handler of a group. Created by `begin`; ended by `end`, or by a crash."""

    name = "handler's process"
    _author = Author("")

    @classmethod
    async def begin(cls, config: RootConfig) -> Self:
        """Start a process with the handler of the configuration's only group. Raises HandlerUnusableError."""
        process = await cls.begin_watched((MODULE,))
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await process.ask("build", HandlerOrder(config, tuple(sys.path), str(process.fault_file)))
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
            await self.kill_and_tell()
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
        return CallResult((Verdict(outcome),) * len(messages), seconds, error, place, is_failure=True)
