"""The root logger's handlers: a blocking one, and another that never blocks its callers."""

from __future__ import annotations

import logging
import time
from typing import IO, Final, cast

from rmqd.process.logs.writer import LogWriter, runs_the_loop

# How much other code may log in the event loop's thread. A line takes about 40 µs, so this is at most a fifth of the
# time.
LINES_PER_SECOND: Final = 5_000
LINES_AT_ONCE: Final = 10_000


class OwnHandler(logging.StreamHandler[IO[str]]):
    """Marks rmqd's handlers of the root logger."""


class QueueingHandler(OwnHandler):
    """Passes formatted lines to a writer. It holds no lock, so threads do not wait for each other's lines.

    Other code that logs in the event loop is limited to a rate before its lines are formatted, because heartbeats and
    probes wait meanwhile. Events of rmqd come from structlog and are limited where they are logged.
    """

    def __init__(self, writer: LogWriter) -> None:
        super().__init__(cast(IO[str], writer))
        self._writer = writer
        self._left = float(LINES_AT_ONCE)
        self._filled_at = time.monotonic()

    def handle(self, record: logging.LogRecord) -> bool:
        """Like the standard library's method, without its lock. Returns True if the line was formatted."""
        if not self.filter(record):
            return False
        if not isinstance(record.msg, dict) and runs_the_loop() and not self._may_write():
            self._writer.drop()
            return False
        self.emit(record)
        return True

    def flush(self) -> None:
        """Do nothing: `finish_writing` waits for the writer at the end of the process."""

    def _may_write(self) -> bool:
        now = time.monotonic()
        self._left = min(LINES_AT_ONCE, self._left + (now - self._filled_at) * LINES_PER_SECOND)
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
