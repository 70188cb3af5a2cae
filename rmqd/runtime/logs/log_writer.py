"""Writes log lines to a stream from a separate thread, and limits their values.

A pipe whose reader is stuck, a terminal after ^S, or a hung journald blocks a writer without limit. So lines wait in a
bounded queue. If it is full, lines are dropped and counted. The count is logged when the stream accepts lines again.

A broker's remark or a handler's error may be megabytes long, and may contain text from the sender of a message.
"""

from __future__ import annotations

import asyncio
import atexit
import io
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from itertools import islice
from typing import IO, Any, Final

from rmqd.runtime.plain_text import hide_secrets, printable, printable_lines, text_of

EventDict = MutableMapping[str, Any]

MAX_VALUE_CHARACTERS: Final = 8192
MAX_COLLECTION_MEMBERS: Final = 100
MAX_NESTING_LEVELS: Final = 4
# A traceback is cut in the middle, because its end names the error.
_TAIL_CHARACTERS: Final = 2048
_OF_A_PROGRAM: Final = frozenset({"timestamp", "level", "logger"})


def shorten_values(_logger: object, _method: str, event: EventDict) -> EventDict:
    """A structlog processor that cuts long texts and large collections, and marks the cuts. Keys do not change."""
    is_ours = str(event.get("logger")).startswith("rmqd.")
    for key, value in event.items():
        if key == "event" and is_ours:
            continue  # an event name is used in alerts, so it must not change, even if it contains a password
        if key == "exception" and isinstance(value, str):
            event[key] = _without_middle(value)
        elif key not in _OF_A_PROGRAM:
            event[key] = _shortened(value, MAX_NESTING_LEVELS)
    return event


def escape_values(_logger: object, _method: str, event: EventDict) -> EventDict:
    """A structlog processor for the console that escapes control characters, and indents lines after the first."""
    for key, value in list(event.items()):
        if key in ("event", "exception", "stack"):
            event[key] = printable_lines(str(value))
        elif isinstance(value, str):
            event[key] = printable(value)
        if not (key.isascii() and key.isprintable()):
            event[printable(key)] = event.pop(key)
    return event


def _shortened(value: Any, levels: int) -> Any:
    match value:
        case str():
            return _cut(hide_secrets(value[: 2 * MAX_VALUE_CHARACTERS]), len(value))
        case None | bool() | float():
            return value
        case int():
            return value if value.bit_length() <= 1024 else "an integer of more than 1024 bits"
        case bytes() | bytearray() | memoryview():
            return _cut(str(bytes(value[: MAX_VALUE_CHARACTERS + 1])), len(value) * 4)
        case Mapping() if levels:
            return {
                _key(key): _shortened(member, levels - 1)
                for key, member in islice(value.items(), MAX_COLLECTION_MEMBERS)
            }
        case list() | tuple() | set() | frozenset() if levels:
            return _shortened_list(value, len(value), levels)
        case _:
            return _cut(text_of(value))


def _shortened_list(values: Iterable[Any], count: int, levels: int) -> list[Any]:
    shown = [_shortened(value, levels - 1) for value in islice(values, MAX_COLLECTION_MEMBERS)]
    return shown if count <= MAX_COLLECTION_MEMBERS else [*shown, f"... and {count - MAX_COLLECTION_MEMBERS} more"]


def _key(key: object) -> str:
    return _cut(key if isinstance(key, str) else text_of(key))


def _cut(text: str, length: int | None = None) -> str:
    if len(text) <= MAX_VALUE_CHARACTERS:
        return text
    return f"{text[:MAX_VALUE_CHARACTERS]}... and {(length or len(text)) - MAX_VALUE_CHARACTERS} more characters"


def _without_middle(text: str) -> str:
    if len(text) <= MAX_VALUE_CHARACTERS:
        return text
    head, tail = text[: MAX_VALUE_CHARACTERS - _TAIL_CHARACTERS], text[-_TAIL_CHARACTERS:]
    return f"{head}\n... {len(text) - MAX_VALUE_CHARACTERS} characters ...\n{tail}"


QUEUE_BYTES: Final = 4 * 1024 * 1024
# If the reader reads nothing for this long, it counts as stuck. Until then threads wait for room in the queue; the
# event loop never waits.
READER_PATIENCE_SECONDS: Final = 1.0
# Several processes may write to one pipe. A write of at most this size is atomic, so lines are not mixed.
_ATOMIC_BYTES: Final = select.PIPE_BUF
_FINISH_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.1


class LogWriter:
    """A stream for a log handler. It writes to the unbuffered file `raw`, and any thread may use it.

    `tell_dropped` is called in the writer's thread with the number of lines that were dropped.
    """

    def __init__(self, raw: io.RawIOBase, tell_dropped: Callable[[int], None]) -> None:
        self._raw = raw
        self._tell_dropped = tell_dropped
        self.restart()

    def restart(self) -> None:
        """Start with an empty queue, a new lock and a new thread. A forked process needs its own lock and thread."""
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._taken = threading.Condition(self._lock)
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = self._untold = 0
        self._taken_at = time.monotonic()
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Queue whole lines. If there is no room, drop and count them."""
        data = text.encode("utf-8", "backslashreplace")
        with self._lock:
            if self._bytes + len(data) > QUEUE_BYTES and not self._wait_for_room(len(data)):
                self._drop(1)
                return
            self._lines.append(data)
            self._bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rmqd.log", daemon=True)
                self._thread.start()
            self._arrived.notify()

    def drop(self) -> None:
        """Count a line that the log handler dropped before it was queued."""
        with self._lock:
            self._drop(1)

    @property
    def dropped(self) -> int:
        """The number of lines dropped so far."""
        return self._dropped

    def finish(self, seconds: float = _FINISH_SECONDS) -> None:
        """Wait until all queued lines are written, for at most this time."""
        deadline = time.monotonic() + seconds
        with self._lock:
            while self._bytes and (left := deadline - time.monotonic()) > 0:
                self._taken.wait(left)

    def _wait_for_room(self, size: int) -> bool:
        """Wait for room in the queue, if this thread may wait. Returns whether there is room."""
        if threading.current_thread() is self._thread or is_event_loop_thread():
            return False
        while self._bytes + size > QUEUE_BYTES:
            if time.monotonic() - self._taken_at > READER_PATIENCE_SECONDS:
                return False
            self._taken.wait(_RETRY_SECONDS)
        return True

    def _drop(self, count: int) -> None:
        self._dropped += count
        self._untold += count

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._lines:
                    self._arrived.wait()
                lines = self._next_lines()
            data = b"".join(lines)
            written = self._write(data)
            with self._lock:
                self._bytes -= len(data)
                self._taken_at = time.monotonic()
                if not written:
                    self._drop(len(lines))
                untold = self._untold if written and self._bytes < QUEUE_BYTES // 2 else 0
                self._untold -= untold
                self._taken.notify_all()
            if untold:
                self._tell_dropped(untold)

    def _next_lines(self) -> list[bytes]:
        lines = [self._lines.popleft()]
        size = len(lines[0])
        while self._lines and size + len(self._lines[0]) <= _ATOMIC_BYTES:
            lines.append(self._lines.popleft())
            size += len(lines[-1])
        return lines

    def _write(self, data: bytes) -> bool:
        """Write all data, without a time limit. Returns False if the stream is closed or broken."""
        rest = memoryview(data)
        try:
            while rest:
                count = self._raw.write(rest)
                if count is None:  # other code made the stream non-blocking
                    select.select([], [self._raw], [], _RETRY_SECONDS)
                else:
                    rest = rest[count:]
        except (OSError, ValueError):  # the reader has ended, the disk is full, or the stream is closed
            return False
        return True


_writers: dict[int, tuple[IO[str], LogWriter]] = {}


def is_event_loop_thread() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def create_writer(stream: IO[str], tell_dropped: Callable[[int], None]) -> LogWriter | None:
    """Return the writer of a stream with a file descriptor; None for a stream in memory, which cannot block."""
    known = _writers.get(id(stream))
    if known is not None and known[0] is stream:
        return known[1]
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # with PYTHONUNBUFFERED `buffer` is the raw file itself
    if not isinstance(raw, io.RawIOBase):
        return None
    if not _writers:
        atexit.register(finish_writing)
        os.register_at_fork(after_in_child=_restart_all)
    _writers[id(stream)] = stream, (writer := LogWriter(raw, tell_dropped))
    return writer


def count_dropped_lines() -> int:
    """Return the number of log lines that this process has dropped so far."""
    return sum(writer.dropped for _, writer in list(_writers.values()))


def finish_writing() -> None:
    """Wait until the log is written, for at most a second. Call it before the process ends."""
    for _, writer in list(_writers.values()):
        writer.finish()


def _restart_all() -> None:
    for _, writer in list(_writers.values()):
        writer.restart()
