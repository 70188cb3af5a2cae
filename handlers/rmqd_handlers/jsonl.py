"""`jsonl`: appends messages to a file as JSON lines. A batch is synced to disk before it is acknowledged."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from rmqd import Batch
from rmqd_handlers.away import mark_waiting
from rmqd_handlers.message_values import to_json_lines
from rmqd_handlers.option_kinds import HandlerOptions, SizeBytes, option

logger = logging.getLogger(__name__)

TAIL_BLOCK_BYTES = 64 << 10
_STAMP: Final = f"{'[0-9]' * 8}T{'[0-9]' * 6}.{'[0-9]' * 6}Z"  # exact, to match no other file such as PATH.1


class AppendFile:
    """Appends blocks of lines. Each block is written completely and synced to disk, or not at all.

    A lock excludes other threads, and flock on the file excludes other processes (`rmqd run --workers`). If a writer is
    killed, the next writer cuts off the unfinished line: its message was not acknowledged, so it is redelivered.
    """

    def __init__(self, path: Path, *, max_size_bytes: int, keep: int | None) -> None:
        self._path = path
        self._max_size_bytes = max_size_bytes
        self._keep = keep
        self._turn = threading.Lock()
        self._fd: int | None = None

    def open(self) -> None:
        """Create the file if it is missing, and keep it open. Raises OSError."""
        with self._turn, self._locked():
            pass

    def append(self, lines: bytes) -> None:
        """Append the lines and wait until they are on disk. If it raises OSError, nothing was appended."""
        if not lines:
            return
        with self._turn:
            while True:
                with self._locked() as (fd, size_bytes):
                    if size_bytes == 0 or size_bytes + len(lines) <= self._max_size_bytes:
                        self._write(fd, lines, size_bytes)
                        return
                    self._rotate()

    def close(self) -> None:
        with self._turn:
            self._close()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[tuple[int, int]]:
        """Lock the file against other processes. Yields its descriptor, and its size after the last whole line."""
        fd = self._lock_current_file()
        try:
            yield fd, _cut_torn_line(fd, self._path)
        except BaseException:
            self._close()  # after a failed write or fsync, the state of this descriptor is not reliable
            raise
        if self._fd is not None:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def _lock_current_file(self) -> int:
        while True:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
                sync_folder(self._path.parent)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                current = os.stat(self._path)
            except FileNotFoundError:  # another program, such as logrotate, has moved the file
                current = None
            if current is not None and os.path.samestat(current, os.fstat(self._fd)):
                return self._fd
            self._close()  # another process rotated the file while this process waited for the lock

    def _write(self, fd: int, lines: bytes, size_before_bytes: int) -> None:
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):  # the next writer cuts off the rest
                os.ftruncate(fd, size_before_bytes)
            raise

    def _rotate(self) -> None:
        """Rename the file to PATH.<UTC time>, so that the next writer creates a new file; delete the oldest files."""
        target = self._path.with_name(f"{self._path.name}.{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
        os.rename(self._path, target)
        self._close()
        if self._keep is not None:
            rotated = sorted(self._path.parent.glob(f"{escape(self._path.name)}.{_STAMP}"))  # oldest first
            for old in rotated[: max(0, len(rotated) - self._keep)]:
                old.unlink(missing_ok=True)
        sync_folder(self._path.parent)

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _cut_torn_line(fd: int, path: Path) -> int:
    """Cut off an unfinished last line, or complete it if only its newline is missing. Returns the file's size."""
    size_bytes = os.fstat(fd).st_size
    if size_bytes == 0 or os.pread(fd, 1, size_bytes - 1) == b"\n":
        return size_bytes
    line_start = _last_line_start(fd, size_bytes)
    torn = os.pread(fd, size_bytes - line_start, line_start)
    try:
        json.loads(torn)
    except ValueError:
        logger.warning("jsonl.torn_line_cut", extra={"path": str(path), "offset": line_start, "bytes": len(torn)})
        os.ftruncate(fd, line_start)
        return line_start
    return size_bytes + os.write(fd, b"\n")


def _last_line_start(fd: int, size_bytes: int) -> int:
    end = size_bytes
    while end > 0:
        start = max(0, end - TAIL_BLOCK_BYTES)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def sync_folder(folder: Path) -> None:
    """Fsync a folder, because the fsync of a new or renamed file does not make the file's name durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class JsonLines:
    """Appends each batch to a file that rotates by size. A batch is written completely and fsynced, or it waits."""

    class Options(HandlerOptions):
        path: Path = Field(description="file to append to; relative paths start at the daemon's working directory")
        max_size: SizeBytes = option(
            "100MiB", "the file is renamed to PATH.<UTC time> before it would grow beyond this", gt=0
        )
        keep: Annotated[int, Field(ge=0)] | None = option(None, "how many renamed files to keep; default: all")

    def __init__(self, options: Options) -> None:
        self._file = AppendFile(options.path, max_size_bytes=options.max_size, keep=options.keep)

    def start(self) -> None:
        """Open the file now: a missing folder or permission fails the start instead of the first message."""
        self._file.open()

    def handle(self, batch: Batch) -> None:
        try:
            self._file.append(to_json_lines(batch))
        except OSError as error:
            mark_waiting(error)
            raise

    def stop(self) -> None:
        self._file.close()
