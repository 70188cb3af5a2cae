"""A child process that runs a user's code: a handler, the groups of a worker, or a Spark driver.

The parent sends requests, and the child answers each request once. Requests and answers are pickles after a four-byte
length, on a socket pair that only these two processes hold. Both run the same program for the same user, so foreign
data is never unpickled. The channel carries any message; its users define the actions and their arguments.

Such a child may crash, hang, and start processes itself. When it crashes, or when it is killed because it hangs, it
writes the stacks of its threads to a file in memory, which its parent reads.
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
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from rmqd.errors import ConfigError, RmqdError
from rmqd.runtime.plain_text import describe, duration, text_of

START_SECONDS: Final = 300.0  # limit for imports and the creation of a handler
STOP_SECONDS: Final = 30.0
EXIT_SECONDS: Final = 30.0  # limit for the end of a child that has closed its socket
STACKS_SECONDS: Final = 2.0  # limit until a hung child has written its stacks
# limit for responses in transit if the child has ended, but a process that it started still holds the socket
OUTPUT_TIMEOUT_SECONDS: Final = 0.5
STACKS_SIGNAL: Final = signal.SIGUSR2
"""Makes a child write the stacks of all its threads."""
_POLL_SECONDS: Final = 0.02
_LENGTH: Final = struct.Struct(">I")

Snapshot = TypeVar("Snapshot")


@dataclass(frozen=True, slots=True)
class _ChildSetup:
    """The first message to every child."""

    import_path: tuple[str, ...]
    """The parent's sys.path. The child is started with another command, but must find the same modules."""
    faults: int
    """The descriptor of the file for stacks."""


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """A request of the parent. One ChildAnswer with the same number responds to it."""

    number: int
    action: str
    argument: Any = None


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """An answer of a child to the request with the same number. Number 0 is the child's last message, not an answer."""

    number: int
    value: Any = None
    problems: tuple[str, ...] = ()
    """The reasons why the request was refused."""


@dataclass(frozen=True, slots=True)
class ChildChannel:
    """One end of the socket pair between a parent and its child."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter

    @classmethod
    async def over(cls, sock: socket.socket) -> Self:
        """Open a channel over a connected socket, which the channel closes."""
        sock.setblocking(False)
        return cls(*await asyncio.open_connection(sock=sock))

    @classmethod
    async def to_parent(cls, descriptor: int) -> tuple[Self, ChildRequest | None]:
        """In a child: set up the process, and return the channel and the first request. The request is None if the
        parent has ended.
        """
        os.set_inheritable(descriptor, False)
        channel = await cls.over(socket.socket(fileno=descriptor))
        setup = await channel.receive()
        if setup is None:
            return channel, None
        sys.path[:] = setup.import_path
        faulthandler.enable(setup.faults)
        faulthandler.register(STACKS_SIGNAL, setup.faults)
        return channel, await channel.receive()

    def post(self, message: object) -> None:
        """Send a message. If the other end has closed, the message is dropped, and `receive` returns None."""
        if not self._writer.is_closing():  # writing would raise in uvloop
            self._writer.write(_framed(message))

    def answer(self, request: ChildRequest, value: object = None) -> None:
        """In a child: send the result of a request."""
        self.post(ChildAnswer(request.number, value))

    def refuse(self, request: ChildRequest, error: Exception) -> None:
        """In a child: send the reasons why a request cannot be fulfilled."""
        if isinstance(error, ConfigError):
            problems = tuple(map(str, error.problems))
        else:
            problems = (text_of(error) if isinstance(error, RmqdError) else describe(error),)
        self.post(ChildAnswer(request.number, problems=problems))

    async def receive(self) -> Any:
        """Return the next message, or None when the other end has closed."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def abort(self) -> None:
        """Close without sending pending messages."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Send pending messages, and close."""
        try:
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
        except ConnectionError:
            pass  # the other end closed first


def send_without_loop(descriptor: int, message: object) -> None:
    """In a child that is about to kill itself: send its last message without the event loop, in any thread."""
    os.write(descriptor, _framed(ChildAnswer(0, message)))


def _framed(message: object) -> bytes:
    data = pickle.dumps(message)
    return _LENGTH.pack(len(data)) + data


class ChildGoneError(RmqdError):
    """The child ended before it answered."""


class ChildRefusedError(ConfigError):
    """The child refused a request. `problems` has its reasons."""


class ChildNotUsableError(RmqdError):
    """A child cannot be started, or its handler cannot be created, started or called, regardless of messages."""


class ChildProcess(Generic[Snapshot]):
    """A running child. Created by `begin`; ended by `end`, `dispose` or a crash."""

    name: ClassVar[str] = "handler's process"
    """The child's name in errors."""
    leads_group: ClassVar[bool] = True
    """Whether the child leads a process group, which is killed with it, because it starts processes itself."""
    snapshot_type: ClassVar[type[Any]] = type(None)
    """The class of the values that `last_snapshot` keeps."""
    patience_seconds = 2.0  # how long `refresh` waits for an answer
    is_silent = False
    """Whether the child did not answer `refresh` in time, and has not answered since."""
    asked_at = 0.0  # when `refresh` last sent a request (monotonic)

    def __init__(self, process: asyncio.subprocess.Process, channel: ChildChannel, faults: int) -> None:
        self._process = process
        self._channel = channel
        self._faults = faults
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.pid = process.pid
        self.is_gone = False
        """Whether the child has ended, or is about to end."""
        self.last_snapshot: Snapshot | None = None
        self.reading: asyncio.Future[int] = asyncio.create_task(self._read(), name=f"answers of the {self.name}")
        """A task that ends with the process. Its result is the exit code."""
        self._watching = asyncio.create_task(self._close_what_is_left(), name=f"end of the {self.name}")

    @classmethod
    async def begin(cls, *command: str, is_quiet: bool = False) -> Self:
        """Start `python -m COMMAND DESCRIPTOR`. Raises ChildNotUsableError.

        `is_quiet`: the child's standard output and error are dropped.
        """
        output = asyncio.subprocess.DEVNULL if is_quiet else None
        faults = _file_in_memory()
        ours, theirs = socket.socketpair()
        descriptors = theirs.fileno(), faults
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", *command, str(theirs.fileno()), pass_fds=descriptors, stdout=output,
                    stderr=output, stdin=asyncio.subprocess.DEVNULL, env=_environment(),
                    start_new_session=cls.leads_group,
                )  # fmt: skip
        except BaseException as error:
            ours.close()
            os.close(faults)
            if isinstance(error, OSError):
                raise ChildNotUsableError(f"cannot start a process: {error}") from error
            raise
        try:
            channel = await ChildChannel.over(ours)
        except BaseException:  # no other code knows the process, so end it here
            ours.close()
            os.close(faults)
            process.kill()
            await process.wait()
            raise
        channel.post(_ChildSetup(tuple(sys.path), faults))
        return cls(process, channel, faults)

    async def ask(self, action: str, argument: object = None) -> Any:
        """Send a request and wait for the answer. Raises ChildRefusedError, ChildGoneError."""
        if self.is_gone:
            raise self._gone_error()
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._channel.post(ChildRequest(number, action, argument))
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def refresh(self, argument: object = None) -> Snapshot | None:
        """Return a new snapshot; None if the child does not answer in time. While it `is_silent`, only return None.

        Raises ChildGoneError.
        """
        if not self.is_silent:
            self.asked_at = time.monotonic()
            try:
                async with asyncio.timeout(self.patience_seconds):
                    answer: Snapshot = await self.ask("snapshot", argument)
                    return answer
            except TimeoutError:
                self._note_silence(True)
        return None

    def report_silence(self, is_silent: bool) -> None:
        """Called when the child becomes silent, and when it answers again."""

    async def ask_to_start(
        self, what: str, action: str, argument: object = None, limit_seconds: float | None = START_SECONDS
    ) -> Any:
        """Send a request that is part of the child's start, and kill the child if it fails. `what` names it in errors.

        Raises ChildNotUsableError.
        """
        try:
            async with asyncio.timeout(limit_seconds):
                return await self.ask(action, argument)
        except ChildRefusedError as error:
            reason = "; ".join(map(str, error.problems))
        except ChildGoneError:
            reason = f"{what} ended its process: it {await self.how()}"
        except TimeoutError:
            reason = f"{what} did not end in {duration(limit_seconds or 0)}"
        except BaseException:
            await self.dispose()
            raise
        await self.dispose()
        raise ChildNotUsableError(reason)

    def post(self, action: str, argument: object = None) -> None:
        """Send a request without waiting for the answer."""
        if not self.is_gone:
            self._channel.post(ChildRequest(next(self._numbers), action, argument))

    async def end(self) -> str | None:
        """Stop the child; kill it if necessary. Returns None, or the problem in words that follow the child's name."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.ask("stop")
                code = await asyncio.shield(self.reading)
        except ChildRefusedError as error:
            return f"raised {'; '.join(map(str, error.problems))}"
        except ChildGoneError:
            return await self.how()
        except TimeoutError:
            return f"did not end in {duration(STOP_SECONDS)}"
        finally:
            await self.dispose()
        return describe_exit(code) if code else None

    def kill(self) -> None:
        """Kill the child and the rest of its process group."""
        if self._process.returncode is None:
            self._process.kill()
        if self.leads_group:
            with suppress(ProcessLookupError, PermissionError):  # the process group is empty; macOS: PermissionError
                os.killpg(self.pid, signal.SIGKILL)

    async def kill_with_stacks(self) -> None:
        """Make a hung child write the stacks of its threads, and kill it."""
        try:
            with suppress(ProcessLookupError):
                os.kill(self.pid, STACKS_SIGNAL)
            deadline = time.monotonic() + STACKS_SECONDS
            size, last = 0, -1
            while (not size or size != last) and time.monotonic() < deadline:  # until all stacks are written
                await asyncio.sleep(_POLL_SECONDS)
                size, last = os.fstat(self._faults).st_size, size
        finally:
            self.kill()

    async def dispose(self) -> None:
        """Kill the child and the processes that it started, if they run."""
        self.kill()
        await asyncio.wait((self.reading, self._watching))

    def thread_stacks(self) -> str:
        """Return the stacks that the child wrote when it crashed or hung; empty if it wrote none."""
        return os.pread(self._faults, os.fstat(self._faults).st_size, 0).decode(errors="replace")

    async def how(self) -> str:
        """Wait for the end of a child that has closed its socket, and return how the child ended."""
        await asyncio.wait((self.reading,), timeout=EXIT_SECONDS)
        return self.describe_current_end()

    def describe_current_end(self) -> str:
        """Return how the child ended, as far as that is already known."""
        return describe_exit(self.reading.result()) if self.reading.done() else "closed its socket to rmqd"

    def __del__(self) -> None:
        os.close(self._faults)  # not earlier, because `faults` is called after the child's end

    async def _read(self) -> int:
        while (answer := await self._channel.receive()) is not None:
            if isinstance(answer.value, self.snapshot_type):
                self.last_snapshot = answer.value
            self._note_silence(False)
            waiting = self._waiting.pop(answer.number, None)
            if waiting is None or waiting.done():
                continue
            if answer.problems:
                waiting.set_exception(ChildRefusedError(list(answer.problems)))
            else:
                waiting.set_result(answer.value)
        self.is_gone = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._gone_error())
        await self._channel.close()
        return await self._process.wait()

    def _note_silence(self, is_silent: bool) -> None:
        if self.is_silent != is_silent:
            self.is_silent = is_silent
            self.report_silence(is_silent)

    async def _close_what_is_left(self) -> None:
        """Wait for the child's end, kill the processes that it started, and close the socket.

        These processes may hold the other end of the socket open. Then `_read` would wait forever.
        """
        await self._process.wait()
        await asyncio.wait((self.reading,), timeout=OUTPUT_TIMEOUT_SECONDS)
        self.kill()
        self._channel.abort()

    def _gone_error(self) -> ChildGoneError:
        return ChildGoneError(f"the {self.name} with pid {self.pid} ended")


def describe_exit(code: int) -> str:
    """Return an exit code in words that follow the process's name."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    memory = " (the kernel does this if memory runs out)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{memory}"


def _file_in_memory() -> int:
    """Return the descriptor of a file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rmqd-faults")
    with tempfile.TemporaryFile(prefix="rmqd-faults-") as file:
        return os.dup(file.fileno())


def _environment() -> dict[str, str]:
    """Return the parent's environment, with this copy of rmqd first in PYTHONPATH."""
    package_folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = [package_folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
