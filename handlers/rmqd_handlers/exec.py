"""`exec`: runs a command per batch, with the messages as JSON lines on its standard input."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Self

from pydantic import Field

from rmqd import Batch, DeadLetter, Retry
from rmqd_handlers.away import mark_waiting
from rmqd_handlers.message_values import to_json_lines
from rmqd_handlers.option_kinds import DurationSeconds, HandlerOptions, option

logger = logging.getLogger(__name__)

EXIT_ACK = 0
EXIT_DEAD_LETTER = 65  # EX_DATAERR of sysexits.h: the input is invalid, and a retry does not help
EXIT_RETRY = 75  # EX_TEMPFAIL: try again later

OUTPUT_TAIL_BYTES = 2048
OUTPUT_CHUNK_BYTES = 64 << 10
LEFTOVER_GRACE_SECONDS = 1.0


# Names of environment variables that may have secrets, which the command must not see.
_SECRET = re.compile(
    r"SECRET|TOKEN|PASSW|PASSPHRASE|CREDENTIAL|(ACCESS|PRIVATE|API)_?KEY|OTLP_.*HEADERS", re.IGNORECASE
)


class CommandFailed(Exception):
    """The command ended with another status than 0, 65 and 75, or by a signal. The batch is retried."""


class Exec:
    """Runs a command per batch. Its exit status decides: 0 acknowledges, 65 dead-letters, all others retry."""

    class Options(HandlerOptions):
        command: Annotated[list[str], Field(min_length=1)] = Field(
            description="program and arguments, run without a shell; for a shell use [sh, -c, ...]"
        )
        env: dict[str, str] = option({}, "variables to add to the daemon's environment")
        pass_env: list[str] = option([], "variables of the daemon to pass on although their names look like secrets")
        cwd: Path | None = option(None, "working directory; default: the daemon's")
        kill_after: DurationSeconds = option("5s", "at a timeout, the time between SIGTERM and SIGKILL")

    def __init__(self, options: Options) -> None:
        self._options = options
        inherited = {
            name: value for name, value in os.environ.items() if name in options.pass_env or not _SECRET.search(name)
        }
        self._env = {**inherited, **options.env}

    def start(self) -> None:
        """Look the program up now: a wrong name fails the start instead of every message."""
        program, cwd = self._options.command[0], self._options.cwd
        if cwd is not None and not cwd.is_dir():
            raise NotADirectoryError(f"exec: the working directory {cwd} does not exist")
        # a name with a slash is relative to the command's working directory; other names are searched in PATH
        found = (cwd or Path()) / program if "/" in program else program
        if shutil.which(found, path=self._env.get("PATH")) is None:
            raise FileNotFoundError(f"exec: no program {program!r} that this user can run")

    async def handle(self, batch: Batch) -> None:
        try:
            await self._run(batch)
        except OSError as error:  # no memory, too many open files, or the program is being replaced
            mark_waiting(error)
            raise

    async def _run(self, batch: Batch) -> None:
        with _as_file(to_json_lines(batch)) as messages:  # before the pipe, whose write end only `writer` closes
            async with _Output() as output:
                with messages, output.writer() as writer:
                    process = await self._start_command(messages, writer)
                try:
                    status = await process.wait()
                    if not await output.ended(LEFTOVER_GRACE_SECONDS):
                        _signal_group(process, signal.SIGKILL)  # the command left a process that keeps its output open
                except BaseException:
                    await self._end(process)
                    raise
                _decide(status, output.text())

    async def _start_command(self, messages: IO[bytes], writer: int) -> asyncio.subprocess.Process:
        """Start the command in a new process group, so that its child processes end with it.

        If the caller is cancelled, wait until the process has started, and end it with its child processes, because no
        other code knows them.
        """
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                *self._options.command,
                stdin=messages,
                stdout=writer,
                stderr=writer,
                env=self._env,
                cwd=self._options.cwd,
                start_new_session=True,
            ),
            name="exec:start",
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait({starting})
            if starting.exception() is None:
                await self._end(starting.result())
            raise

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """End the command and all its child processes. If cancelled, kill them without waiting for `kill_after`."""
        try:
            _signal_group(process, signal.SIGTERM)
            async with asyncio.timeout(self._options.kill_after):
                await process.wait()
        except TimeoutError:
            logger.warning("exec.killed", extra={"command": self._options.command[0], "pid": process.pid})
        finally:
            _signal_group(process, signal.SIGKILL)
            await process.wait()  # returns at once, but the event loop must receive the exit before it is closed


def _decide(status: int, output: str) -> None:
    said = f": {output}" if output else " and printed nothing"
    if status == EXIT_ACK:
        if output:
            logger.debug("exec.output", extra={"output": output})
    elif status == EXIT_RETRY:
        logger.info("exec.retry_asked", extra={"output": output})
        raise Retry
    elif status == EXIT_DEAD_LETTER:
        raise DeadLetter(f"the command ended with status {status}{said}")
    elif status < 0:
        raise CommandFailed(f"the command was ended by {signal.Signals(-status).name}{said}")
    else:
        raise CommandFailed(f"the command ended with status {status}{said}")


class _Output:
    """The command's output. Only the last `OUTPUT_TAIL_BYTES` are kept.

    It uses its own pipe. With asyncio's pipes, `Process.wait` returns only when they are closed, but a background
    process of the command can keep them open.
    """

    def __init__(self) -> None:
        self._tail = bytearray()
        read_fd, self._write_fd = os.pipe()
        self._pipe = os.fdopen(read_fd, "rb", buffering=0)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read(), name="exec:output")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._pipe.close()

    @contextlib.contextmanager
    def writer(self) -> Iterator[int]:
        """Yield the write end for the command. Our copy is closed afterwards; otherwise the output never ends."""
        try:
            yield self._write_fd
        finally:
            os.close(self._write_fd)

    async def ended(self, timeout_seconds: float) -> bool:
        """Wait for the end of the output. Returns False if it is still open after the timeout."""
        done, _ = await asyncio.wait({self._task}, timeout=timeout_seconds)
        return bool(done)

    def text(self) -> str:
        return self._tail.decode(errors="replace").strip()

    async def _read(self) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._pipe
        )
        try:
            while chunk := await reader.read(OUTPUT_CHUNK_BYTES):
                self._tail += chunk
                del self._tail[:-OUTPUT_TAIL_BYTES]
        finally:
            transport.close()


def _as_file(content: bytes) -> IO[bytes]:
    """Return an unnamed file with the content. Unlike a pipe, it needs no writer and cannot block."""
    if sys.platform == "linux":
        file = os.fdopen(os.memfd_create("rmqd-batch"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(content)
    file.seek(0)
    return file


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
