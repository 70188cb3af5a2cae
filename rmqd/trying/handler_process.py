"""The process of a handler as its parent holds it: one call at a time, with a time-out, and how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, Self

from rmqd.config.model.root import RootConfig
from rmqd.errors import RmqdError
from rmqd.process.child import ChildGoneError, ChildProcess
from rmqd.trying.order import WHERE_SIGNAL, CallResult, HandlerOrder, NotUsable, Ready, Verdict
from rmqd.trying.places import Author, place_of_fault
from rmqd.wire.messages.message import Message

MODULE: Final = "rmqd.trying.handler_main"
START_SECONDS: Final = 300.0
STOP_SECONDS: Final = 30.0
LEFT_OPEN_SECONDS: Final = 0.5  # for answers on their way, where the process ended and one that it started goes on
WHERE_SECONDS: Final = 2.0  # for a process that hangs to write down where it is
_LOOK_SECONDS: Final = 0.02


class HandlerUnusableError(RmqdError):
    """The handler cannot be made, started or called, whatever the messages."""


class HandlerProcess(ChildProcess[None]):
    """A running process with the handler of a group. Made by `begin`; ends by `end`, or by itself."""

    name = "handler's process"
    own_group = True
    _author = Author("")
    _faults: Path
    _reading: asyncio.Task[int]
    _watching: asyncio.Task[None]

    @classmethod
    async def begin(cls, config: RootConfig) -> Self:
        """Start a process with the handler of the only group of a configuration. Raises HandlerUnusableError."""
        descriptor, faults = tempfile.mkstemp(prefix="rmqd-try-")
        os.close(descriptor)
        process = await cls.start((MODULE,))
        process._faults = Path(faults)
        process._reading = asyncio.create_task(process.read(), name="handler's process")
        process._watching = asyncio.create_task(process._close_what_is_left(), name="end of the handler's process")
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await process.ask("build", HandlerOrder(config, tuple(sys.path), faults))
        except (ChildGoneError, TimeoutError) as error:
            hangs = isinstance(error, TimeoutError)
            how = f"did not end in {START_SECONDS:g} s" if hangs else f"ended its process: {await process._how()}"
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
        """Have the handler handle messages of one queue. Raises HandlerUnusableError.

        Returns the result, and where the process is gone afterwards, how that came: it died, or was killed as the call
        took longer than the time-out.
        """
        started = time.monotonic()
        try:
            async with asyncio.timeout(timeout_seconds):
                result = await self.ask("call", messages)
        except ChildGoneError:
            how = await self._how()
            return self._failed("died", messages, time.monotonic() - started, f"the process {how}"), how
        except TimeoutError:
            await self._write_down_where()
            late = f"did not end in {timeout_seconds:g} s"
            result = self._failed("expired", messages, time.monotonic() - started, f"the handler {late}")
            return result, f"was killed, as its handler {late}"
        if isinstance(result, NotUsable):
            raise HandlerUnusableError(result.reason)
        assert isinstance(result, CallResult)
        return result, None

    async def end(self) -> str | None:
        """Call the handler's `stop`, and end the process. Returns what went wrong with that."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                answer = await self.ask("stop")
                code = await asyncio.shield(self._reading)
        except ChildGoneError:
            return await self._how()
        except TimeoutError:
            return f"did not end in {STOP_SECONDS:g} s"
        if isinstance(answer, NotUsable):
            return f"raised {answer.reason}"
        return _ended(code) if code else None

    async def dispose(self) -> None:
        """Kill the process, with those that it started, if it runs; remove what it left."""
        self.kill()
        await asyncio.wait((self._reading, self._watching))
        self._faults.unlink(missing_ok=True)

    def _failed(
        self, outcome: Literal["died", "expired"], messages: list[Message], seconds: float, error: str
    ) -> CallResult:
        place = place_of_fault(self._faults.read_text(errors="replace"), self._author)
        return CallResult((Verdict(outcome),) * len(messages), seconds, error, place, is_failure=True)

    async def _write_down_where(self) -> None:
        """Have a process that hangs write down the stacks of its threads, and kill it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, WHERE_SIGNAL)
        deadline = time.monotonic() + WHERE_SECONDS
        size, last = 0, -1
        while (not size or size != last) and time.monotonic() < deadline:  # until it has written all
            await asyncio.sleep(_LOOK_SECONDS)
            size, last = self._faults.stat().st_size, size
        self.kill()

    async def _how(self) -> str:
        """How the process ended: its socket is closed, so that it did, or does so soon."""
        done, _ = await asyncio.wait((self._reading,), timeout=STOP_SECONDS)
        if not done:
            return "closed its socket to rmqd"
        return _ended(self._reading.result())

    async def _close_what_is_left(self) -> None:
        """Kill what the process has started once it has ended: that may hold the socket open, and so hide the end."""
        await self._process.wait()
        await asyncio.wait((self._reading,), timeout=LEFT_OPEN_SECONDS)
        self.kill()

    def _snapshot_in(self, value: object) -> None:
        return None


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    memory = " (the kernel does that where memory runs out)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{memory}"
