"""Child processes of rmqd: their messages, their life, and the faults of foreign code in them.

A child process of rmqd, as seen by its parent: start it, send requests over a socket pair, end it.

`WatchedChild` runs foreign code: it may crash, hang, and start processes. If it crashes or hangs, it writes the stacks
of its threads to a file, its *fault file*.

Only the two processes hold the socket pair. Messages are pickles after a four-byte length. Both ends are the same
program, started by the same user, so foreign data is never unpickled.
"""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import os
import pickle
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, Literal, Protocol, Self, TypeVar

from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.pauses import PauseScope
from rmqd.errors import ConfigError, RmqdError
from rmqd.runtime.plain_text import describe

_LENGTH = struct.Struct(">I")

Action = Literal[
    "build", "call", "check", "run", "snapshot", "pause", "resume", "apply", "stop", "force_stop", "start", "revoke",
    "log", "end_calls", "so_far",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """The groups that a worker must build before it runs them."""

    config: RootConfig
    worker: int
    workers: int
    pauses: Mapping[str, tuple[PauseScope, ...]]
    """The paused scopes by group."""
    import_path: tuple[str, ...]
    """The parent's sys.path. The worker is started differently, but must find the same handlers."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the parent. One ChildAnswer with the same number responds to it."""

    number: int
    action: Action
    argument: Any = None


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """A response of a child. Number 0 belongs to no request: it has the child's last snapshot before its end."""

    number: int
    value: Any = None
    problems: tuple[str, ...] = field(default=())
    """The reasons why a configuration was refused."""


class ChildChannel:
    """One end of the socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> Self:
        """Open a channel over a connected socket, which the channel closes."""
        return cls(*await asyncio.open_connection(sock=sock))

    def post(self, message: Request | ChildAnswer) -> None:
        """Send a message. If the other end has closed, the message is dropped, and `receive` reports that end."""
        if self._writer.is_closing():
            return  # writing would raise in uvloop
        data = pickle.dumps(message)
        self._writer.write(_LENGTH.pack(len(data)) + data)

    async def receive(self) -> Any:
        """Return the next message, or None when the other end has closed."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def close(self) -> None:
        """Send pending messages, and close."""
        try:
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
        except ConnectionError:
            pass  # the other end closed first


Snapshot = TypeVar("Snapshot")


class ChildGoneError(RmqdError):
    """The child ended before it responded."""


class ChildProcess(Generic[Snapshot]):
    """A running child. Created by `start`. `read` must run as long as the child lives."""

    name = "child"
    """The child's name in errors."""
    own_group = False
    """Whether the child leads a process group, which is killed with it, because it starts processes itself."""

    def __init__(self, process: asyncio.subprocess.Process, channel: ChildChannel) -> None:
        self._process = process
        self._channel = channel
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._gone = False
        self.pid = process.pid
        self.last_snapshot: Snapshot | None = None

    @classmethod
    async def start(cls, command: Sequence[str]) -> Self:
        """Start `python -m COMMAND DESCRIPTOR`, which reads its specification from the descriptor. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *command, str(theirs.fileno()), pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL, env=_environment(), start_new_session=cls.own_group,
            )  # fmt: skip
        ours.setblocking(False)
        try:
            return cls(process, await ChildChannel.over(ours))
        except BaseException:  # no other code knows the process, so end it here
            ours.close()
            process.kill()
            await process.wait()
            raise

    async def read(self) -> int:
        """Receive the child's responses until it ends. Returns its exit code."""
        while (answer := await self._channel.receive()) is not None:
            assert isinstance(answer, ChildAnswer)
            if (snapshot := self._snapshot_in(answer.value)) is not None:
                self.last_snapshot = snapshot
            waiting = self._waiting.pop(answer.number, None)
            if waiting is None or waiting.done():
                continue
            if answer.problems:
                waiting.set_exception(ConfigError(list(answer.problems)))
            else:
                waiting.set_result(answer.value)
        self._gone = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._gone_error())
        await self._channel.close()
        return await self._process.wait()

    async def ask(self, action: Action, argument: object = None) -> Any:
        """Send a request and wait for the response. Raises ConfigError if it is refused, or ChildGoneError."""
        if self._gone:
            raise self._gone_error()
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._channel.post(Request(number, action, argument))
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    def post(self, action: Action, argument: object = None) -> None:
        """Send a request without waiting for the response."""
        if not self._gone:
            self._channel.post(Request(next(self._numbers), action, argument))

    def kill(self) -> None:
        """Kill the child and the rest of its process group."""
        if self._process.returncode is None:
            self._process.kill()
        if self.own_group:
            with suppress(ProcessLookupError):  # the process group is empty
                os.killpg(self.pid, signal.SIGKILL)

    def _snapshot_in(self, value: object) -> Snapshot | None:
        """Return the value if it is a snapshot of this kind of child, else None."""
        raise NotImplementedError

    def _gone_error(self) -> ChildGoneError:
        return ChildGoneError(f"the {self.name} with pid {self.pid} ended")


def _environment() -> dict[str, str]:
    """Return the parent's environment, with this copy of rmqd first in PYTHONPATH."""
    package_folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = [package_folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


WHERE_SIGNAL: Final = signal.SIGUSR2
"""Makes the process write the stacks of all its threads."""
# for responses in transit, if the process has ended but a process that it started still runs
LEFT_OPEN_SECONDS: Final = 0.5
WHERE_SECONDS: Final = 2.0  # how long to wait until a hung process has written its stacks
HOW_SECONDS: Final = 30.0  # how long to wait for the end of a process that has closed its socket
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

    async def kill_with_stacks(self) -> None:
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


class WatchedSpec(Protocol):
    """The part of a child's first request that every watched child needs."""

    @property
    def import_path(self) -> tuple[str, ...]:
        """The parent's sys.path: the child must find the same modules."""

    @property
    def fault_file(self) -> str:
        """The path of the child's fault file."""


SpecT = TypeVar("SpecT", bound=WatchedSpec)


async def first_spec(channel: ChildChannel, kind: type[SpecT]) -> tuple[int, SpecT] | None:
    """In the child: return the number of the first request and its specification. Its fault file and import path then
    apply.

    None if the parent has ended or requests something else.
    """
    first = await channel.receive()
    if not isinstance(first, Request) or not isinstance(first.argument, kind):
        return None
    spec = first.argument
    _write_down_faults(spec.fault_file)
    sys.path[:] = spec.import_path
    return first.number, spec


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
