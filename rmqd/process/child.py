"""A child process of rmqd, as seen by its parent: start it, send requests over a socket pair, end it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

from rmqd.errors import ConfigError, RmqdError
from rmqd.process.channel import Action, ChildAnswer, ChildChannel, Request

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

    def tell(self, action: Action, argument: object = None) -> None:
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
