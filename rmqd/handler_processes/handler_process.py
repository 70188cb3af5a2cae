"""One worker process of a handler, as seen by the daemon."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Final, Self

from rmqd.clock import Clock
from rmqd.consumer.handling.threads import UnusableHandlerError
from rmqd.errors import RmqdError
from rmqd.handler_api import Batch, OrderlyBatch
from rmqd.handler_processes.order import Answer, Call, HandlerOrder
from rmqd.process.child import ChildGoneError
from rmqd.process.logs import logs
from rmqd.process.watched_child import NotUsable, WatchedChild, how_it_ended

MODULE: Final = "rmqd.handler_processes.handler_main"
BUILD_SECONDS: Final = 300.0
STOP_SECONDS: Final = 30.0
SO_FAR_SECONDS: Final = 1.0  # for the event loop of a process with a hung call
LOOK_SECONDS: Final = 0.2  # how often the lock of an orderly batch is checked during its call


class HandlerNotStartedError(RmqdError):
    """The handler cannot be created or started in its process."""


class HandlerProcess(WatchedChild):
    """A running worker process. Created by `build`; then call `begin`, any number of `call`, and `end` or `dispose`."""

    name = "handler's process"
    keeps_calls_open = False
    """Whether the handler has `end_calls`. A request "end_calls" calls it."""
    _log: logs.LogSettings

    @classmethod
    async def build(cls, order: HandlerOrder) -> Self:
        """Start a process that creates the handler. Raises HandlerNotStartedError."""
        try:
            process = await cls.begin_watched((MODULE,))
        except OSError as error:
            raise HandlerNotStartedError(f"cannot start a process: {error}") from error
        process._log = logs.log_settings()
        order = replace(order, fault_file=str(process.fault_file), log=process._log)
        try:
            async with asyncio.timeout(BUILD_SECONDS):
                answer = await process.ask("build", order)
        except BaseException as error:
            how = None if isinstance(error, asyncio.CancelledError) else await process._reason(error)
            await process.dispose()
            if how is None:
                raise
            raise HandlerNotStartedError(f"the handler's import {how}") from None
        if isinstance(answer, NotUsable):
            await process.dispose()
            raise HandlerNotStartedError(answer.reason)
        process.keeps_calls_open = bool(answer)
        return process

    async def begin(self) -> None:
        """Call the handler's `start`. Raises HandlerNotStartedError."""
        try:
            answer = await self.ask("start")
        except ChildGoneError:
            raise HandlerNotStartedError(f"the handler's start ended its process: it {await self.how()}") from None
        if isinstance(answer, NotUsable):
            raise HandlerNotStartedError(answer.reason)

    async def call(self, batch: Batch, clock: Clock) -> Answer:
        """Handle a batch. Raises ChildGoneError, UnusableHandlerError."""
        if (now := logs.log_settings()) is not self._log:
            self._log = now
            self.tell("log", now)
        call = Call.of(batch)
        if isinstance(batch, OrderlyBatch):
            answer = await self._call_under_lock(batch, call, clock)
        else:
            answer = await self.ask("call", call)
        if isinstance(answer, NotUsable):
            raise UnusableHandlerError(answer.reason)
        assert isinstance(answer, Answer)
        return answer

    async def so_far(self) -> Answer | None:
        """Return the decisions of the running call so far; None if the process's event loop hangs and cannot
        respond.
        """
        with suppress(ChildGoneError, TimeoutError):
            async with asyncio.timeout(SO_FAR_SECONDS):
                answer: Answer | None = await self.ask("so_far")
                return answer
        return None

    async def _call_under_lock(self, batch: OrderlyBatch, call: Call, clock: Clock) -> object:
        """Call the handler, and notify it if the queue's lock is lost meanwhile."""
        asking = asyncio.create_task(self.ask("call", call), name="call in the handler's process")
        is_told = call.is_revoked
        try:
            while not asking.done():
                await clock.wait((asking,), timeout=LOOK_SECONDS)
                if batch.revoked and not is_told:
                    is_told = True
                    self.tell("revoke")
            return asking.result()
        finally:
            asking.cancel()

    async def end(self) -> str | None:
        """Call the handler's `stop`, and end the process. Returns the problem if this fails, else None."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                answer = await self.ask("stop")
                await asyncio.shield(self.reading)
        except (ChildGoneError, TimeoutError) as error:
            return await self._reason(error)
        finally:
            await self.dispose()
        return f"raised {answer.reason}" if isinstance(answer, NotUsable) else None

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, or is about to end."""
        return self._gone

    def how_now(self) -> str:
        """Return how it ended, as far as that is already known."""
        return how_it_ended(self.reading.result()) if self.reading.done() else "closed its socket to rmqd"

    async def _reason(self, error: BaseException) -> str:
        return "did not end in time" if isinstance(error, TimeoutError) else await self.how()
