"""The root logger's handlers: one that writes at once, and one whose callers never wait for a stream."""

from __future__ import annotations

import logging
import time
from typing import IO, Final, cast

from rmqd.process.logs.writer import LogWriter, runs_the_loop

# What other code may log in the event loop's thread. A line costs it some 40 microseconds: at most a fifth of its time.
LINES_PER_SECOND: Final = 5_000
LINES_AT_ONCE: Final = 10_000


class OwnHandler(logging.StreamHandler[IO[str]]):
    """Marks rmqd's handlers of the root logger."""


class QueueingHandler(OwnHandler):
    """Hands formatted lines to a writer, in whichever thread: no lock is held, so none waits for another one's line.

    A handler that logs without end in the event loop is held to a rate before its lines are formatted, since heartbeats
    and probes wait for what runs there. Our own events, which are structlog's, know their bounds themselves.
    """

    def __init__(self, writer: LogWriter) -> None:
        super().__init__(cast(IO[str], writer))
        self._writer = writer
        self._left = float(LINES_AT_ONCE)
        self._filled_at = time.monotonic()

    def handle(self, record: logging.LogRecord) -> bool:
        """As the standard library's, without its lock. True where the line is formatted."""
        if not self.filter(record):
            return False
        if not isinstance(record.msg, dict) and runs_the_loop() and not self._may_write():
            self._writer.drop()
            return False
        self.emit(record)
        return True

    def flush(self) -> None:
        """Do nothing: the code that ends the process waits for the writer."""

    def _may_write(self) -> bool:
        now = time.monotonic()
        self._left = min(LINES_AT_ONCE, self._left + (now - self._filled_at) * LINES_PER_SECOND)
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
