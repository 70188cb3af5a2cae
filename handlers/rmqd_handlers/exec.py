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

from pydantic import BaseModel, ConfigDict, Field

from rmqd import Batch, DeadLetter, Retry

from .away import mark_waiting
from .record import to_json_lines
from .units import DurationSeconds

logger = logging.getLogger(__name__)

EXIT_ACK = 0
EXIT_DEAD_LETTER = 65  # EX_DATAERR of sysexits.h: the input is wrong, and would be wrong again
EXIT_RETRY = 75  # EX_TEMPFAIL: try again later

OUTPUT_TAIL_BYTES = 2048
OUTPUT_CHUNK_BYTES = 64 << 10
LEFTOVER_GRACE_SECONDS = 1.0


# Names of variables that hold what the daemon was trusted with, and the command was not.
_SECRET = re.compile(
    r"SECRET|TOKEN|PASSW|PASSPHRASE|CREDENTIAL|(ACCESS|PRIVATE|API)_?KEY|OTLP_.*HEADERS", re.IGNORECASE
)


class CommandFailed(Exception):
    """The command ended with a status that has no meaning of its own; the batch is retried."""


class Exec:
    """Runs a command per batch; its exit status decides: 0 acknowledges, 65 dead-letters, all else retries."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid", validate_default=True)

        command: Annotated[list[str], Field(min_length=1)] = Field(
            description="program and arguments; no shell is involved, use [sh, -c, ...] for one"
        )
        env: dict[str, str] = Field(default_factory=dict, description="variables added to the daemon's own")
        pass_env: list[str] = Field(
            default_factory=list,
            description="variables of the daemon to pass on though their names are those of secrets",
        )
        cwd: Path | None = Field(None, description="working directory; default: the daemon's own")
        kill_after: DurationSeconds = Field(
            "5s",  # type: ignore[assignment]
            description="at a timeout, how long the command has between SIGTERM and SIGKILL",
        )

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
        # a name with a slash is relative to the command's working directory, any other is searched in PATH
        found = (cwd or Path()) / program if "/" in program else program
        if shutil.which(found, path=self._env.get("PATH")) is None:
            raise FileNotFoundError(f"exec: there is no program {program!r} that this user may run")

    async def handle(self, batch: Batch) -> None:
        async with _Output() as output:
            with _as_file(to_json_lines(batch)) as messages, output.writer() as writer:
                try:
                    process = await self._start_command(messages, writer)
                except OSError as error:  # no memory, too many files, or the program is being replaced
                    mark_waiting(error)
                    raise
            try:
                status = await process.wait()
                if not await output.ended(LEFTOVER_GRACE_SECONDS):
                    _signal_group(process, signal.SIGKILL)  # left behind by the command, with its output still open
            except BaseException:
                await self._end(process)
                raise
            _decide(status, output.text())

    async def _start_command(self, messages: IO[bytes], writer: int) -> asyncio.subprocess.Process:
        """The command's process, in a group of its own, so that what it started ends with it.

        A start that is cancelled goes on until there is a process to be ended: by then the command may have started
        others, of which nobody else knows.
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
        """End the command with all that it started; a second cancellation cuts the grace short."""
        try:
            _signal_group(process, signal.SIGTERM)
            async with asyncio.timeout(self._options.kill_after):
                await process.wait()
        except TimeoutError:
            logger.warning("exec.killed", extra={"command": self._options.command[0], "pid": process.pid})
        finally:
            _signal_group(process, signal.SIGKILL)
            await process.wait()  # at once now, and without it the event loop may end before it hears of the end


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
    """What the command prints, of which the last part is kept.

    A pipe of our own: the wait for a process with pipes of asyncio's lasts until they are closed, and so for as long
    as anything that the command left in the background lives.
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
        """The end for the command; ours is closed again, or the output would never end."""
        try:
            yield self._write_fd
        finally:
            os.close(self._write_fd)

    async def ended(self, timeout_seconds: float) -> bool:
        """Wait for the end of the output; False where it is still open after the timeout."""
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
    """A file without a name that holds the content: unlike a pipe it needs nobody to feed it, and cannot block."""
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
