"""One worker process as the parent holds it: started, asked, ended."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
from typing import Any

from rmqd.daemon.totals import ProcessSnapshot
from rmqd.daemon.worker_channel import Action, Answer, BuildOrder, Channel, Request
from rmqd.errors import ConfigError, RmqdError

HIDDEN_COMMAND = "_worker"


class WorkerGoneError(RmqdError):
    """The worker ended before it answered."""


class WorkerProcess:
    """A running worker. Made by `spawn`; `read` must run as long as it lives."""

    def __init__(self, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self._process = process
        self._channel = channel
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._gone = False
        self.pid = process.pid
        self.last_snapshot: ProcessSnapshot | None = None

    @classmethod
    async def spawn(cls) -> WorkerProcess:
        """Start a process that waits for its order. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rmqd", HIDDEN_COMMAND, str(theirs.fileno()),
                pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, env=_environment(),
            )  # fmt: skip
        ours.setblocking(False)
        return cls(process, await Channel.over(ours))

    async def read(self) -> int:
        """Take the worker's answers until it is gone; its exit code."""
        while (answer := await self._channel.receive()) is not None:
            assert isinstance(answer, Answer)
            if isinstance(answer.value, ProcessSnapshot):
                self.last_snapshot = answer.value
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
                waiting.set_exception(WorkerGoneError(f"the worker with pid {self.pid} ended"))
        await self._channel.close()
        return await self._process.wait()

    async def build(self, order: BuildOrder) -> None:
        """Have it build the groups, connecting nothing. Raises ConfigError, WorkerGoneError."""
        await self.ask("build", order)

    async def ask(self, action: Action, argument: object = None) -> Any:
        """The answer to a request. Raises ConfigError where it is refused, WorkerGoneError where none comes."""
        if self._gone:
            raise WorkerGoneError(f"the worker with pid {self.pid} ended")
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._channel.post(Request(number, action, argument))
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    def tell(self, action: Action) -> None:
        """A request whose answer nobody waits for."""
        if not self._gone:
            self._channel.post(Request(next(self._numbers), action))

    def kill(self) -> None:
        """End it without a word."""
        if self._process.returncode is None:
            self._process.kill()


def _environment() -> dict[str, str]:
    """Ours, with this very copy of rmqd found first, however the parent was started."""
    package_folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = [package_folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
