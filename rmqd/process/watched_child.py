"""A child process that runs foreign code: it may crash, hang, and start processes.

If it crashes or hangs, it writes the stacks of its threads to a file, its *fault file*.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self, TypeVar

from rmqd.errors import ConfigError
from rmqd.plain_text import describe
from rmqd.process.channel import ChildAnswer, ChildChannel, Request
from rmqd.process.child import ChildProcess

WHERE_SIGNAL: Final = signal.SIGUSR2
"""Makes the process write the stacks of all its threads."""
# for responses in transit, if the process has ended but a process that it started still runs
LEFT_OPEN_SECONDS: Final = 0.5
WHERE_SECONDS: Final = 2.0  # for a hung process to write its stacks
HOW_SECONDS: Final = 30.0  # for a process that has closed its socket to end
_LOOK_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class NotUsable:
    """The response of a process whose handler cannot be created, started, called or stopped, regardless of messages."""

    reason: str

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Return the response for an exception during the handler's creation or start."""
        return cls("; ".join(map(str, error.problems)) if isinstance(error, ConfigError) else describe(error))


class WatchedChild(ChildProcess[None]):
    """A running child with a fault file. Created by `begin_watched`; the caller must end it with `dispose`."""

    own_group = True
    fault_file: Path
    reading: asyncio.Task[int]
    """Ends with the process, and returns its exit code."""
    _watching: asyncio.Task[None]

    @classmethod
    async def begin_watched(cls, command: Sequence[str]) -> Self:
        """Start `python -m COMMAND DESCRIPTOR`, and receive its responses until it ends. Raises OSError."""
        process = await cls.start(command)
        descriptor, path = tempfile.mkstemp(prefix="rmqd-faults-")
        os.close(descriptor)
        process.fault_file = Path(path)
        process.reading = asyncio.create_task(process.read(), name=cls.name)
        process._watching = asyncio.create_task(process._close_what_is_left(), name=f"end of the {cls.name}")
        return process

    async def kill_and_tell(self) -> None:
        """Make a hung process write the stacks of its threads, and kill it."""
        try:
            with suppress(ProcessLookupError):
                os.kill(self.pid, WHERE_SIGNAL)
            deadline = time.monotonic() + WHERE_SECONDS
            size, last = 0, -1
            while (not size or size != last) and time.monotonic() < deadline:  # until it has written everything
                await asyncio.sleep(_LOOK_SECONDS)
                size, last = self.fault_file.stat().st_size, size
        finally:
            self.kill()

    def faults(self) -> str:
        """Return the stacks that it wrote; empty if there was no fault."""
        return self.fault_file.read_text(errors="replace")

    async def how(self) -> str:
        """Return how the process ended. Its socket is closed, so it has ended or will end soon."""
        done, _ = await asyncio.wait((self.reading,), timeout=HOW_SECONDS)
        return how_it_ended(self.reading.result()) if done else "closed its socket to rmqd"

    async def dispose(self) -> None:
        """Kill the process and its child processes, if they run. Remove its files."""
        self.kill()
        await asyncio.wait((self.reading, self._watching))
        self.fault_file.unlink(missing_ok=True)

    async def _close_what_is_left(self) -> None:
        """When the process has ended, kill the processes that it started: they may hold the socket open, which hides
        the end.
        """
        await self._process.wait()
        await asyncio.wait((self.reading,), timeout=LEFT_OPEN_SECONDS)
        self.kill()

    def _snapshot_in(self, value: object) -> None:
        return None


class WatchedOrder(Protocol):
    """The part of a child's first request that every watched child needs."""

    @property
    def import_path(self) -> tuple[str, ...]:
        """The parent's sys.path: the child must find the same modules."""

    @property
    def fault_file(self) -> str:
        """The path of the child's fault file."""


Order = TypeVar("Order", bound=WatchedOrder)


async def first_order(channel: ChildChannel, kind: type[Order]) -> tuple[int, Order] | None:
    """In the child: return the number of the first request and its specification. Its fault file and import path then
    apply.

    None if the parent has ended or requests something else.
    """
    first = await channel.receive()
    if not isinstance(first, Request) or not isinstance(first.argument, kind):
        return None
    order = first.argument
    _write_down_faults(order.fault_file)
    sys.path[:] = order.import_path
    return first.number, order


async def answer_not_usable(channel: ChildChannel, number: int, error: Exception) -> None:
    """In the child: send the reason why its handler cannot be created or started, as the last response."""
    channel.post(ChildAnswer(number, NotUsable.of(error)))
    await channel.close()


def _write_down_faults(path: str) -> None:
    """Make a crash, and WHERE_SIGNAL, write the stacks of all threads to the fault file."""
    descriptor = os.open(path, os.O_WRONLY)  # open until the end
    faulthandler.enable(descriptor)
    faulthandler.register(WHERE_SIGNAL, descriptor)


def how_it_ended(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    memory = " (the kernel does this if memory runs out)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{memory}"
