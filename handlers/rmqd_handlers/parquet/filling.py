"""The file that gathers a queue's messages, and the calls that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from rmqd import Message, MessageQueue
from rmqd_handlers.message_values import time_of

from .manifest import RANGE


@dataclass(frozen=True, slots=True)
class Row:
    """A message with the values of its columns."""

    message: Message
    values: tuple[Any, ...]
    date: str
    """The day when the broker stored it, in UTC."""

    @property
    def place(self) -> tuple[str, str, int]:
        """Rows with the same place are written to one file. Date and topic are the file's folders; the range of offsets
        is the folder of its entry.
        """
        return self.date, self.message.topic, self.message.queue_offset // RANGE


class Filling:
    """Rows of one queue that are not yet written. Only the handler's calls add rows, and they wait until the file is
    written.
    """

    def __init__(self, queue: MessageQueue, most_bytes: int) -> None:
        self.queue = queue
        self.size_bytes = 0
        """The size of the bodies."""
        self.due = asyncio.Event()
        """Set when it must be written at once."""
        self.why = "roll_after"
        self._most_bytes = most_bytes
        self._parts: dict[object, list[Row]] = {}
        self._is_closed = False
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._offsets: frozenset[int] = frozenset()

    async def take(self, rows: list[Row]) -> None:
        """Add the rows of a call, and wait until they are listed. Raises the exception of writing them.

        If a call is cancelled before the file is closed, its rows are removed: their messages are redelivered.
        """
        part = object()
        self._parts[part] = rows
        size_bytes = sum(len(row.message.body) for row in rows)
        self.size_bytes += size_bytes
        if self.size_bytes >= self._most_bytes:
            self.end("roll_size")
        try:
            await asyncio.shield(self._done)
        finally:
            if not self._is_closed:
                del self._parts[part]
                self.size_bytes -= size_bytes

    def end(self, why: str) -> None:
        """Write it at once."""
        if not self.due.is_set():
            self.why = why
            self.due.set()

    def close(self) -> Iterator[list[Row]]:
        """Accept no more rows. Yields the rows of each file to write, by ascending offsets."""
        self._is_closed = True
        # each row once: if a queue is released and acquired again, its messages may be redelivered while their first
        # calls are still open
        every = (row for part in self._parts.values() for row in part)
        once = {(row.message.queue_offset, row.message.store_timestamp): row for row in every}
        rows = list(once.values())
        self._offsets = frozenset(row.message.queue_offset for row in rows)
        for of_topic in _apart(rows):
            for _, of_file in groupby(sorted(of_topic, key=attrgetter("place")), key=attrgetter("place")):
                yield list(of_file)

    def finished(self, error: Exception | None = None) -> None:
        """Let the calls return, or raise."""
        if error is None:
            self._done.set_result(None)
        elif self._parts:
            self._done.set_exception(error)

    async def settled(self, rows: list[Row]) -> None:
        """If it contains some of these rows, wait until it is written: they were redelivered meanwhile."""
        if not self._offsets.isdisjoint(row.message.queue_offset for row in rows):
            await asyncio.wait((self._done,))


def _apart(rows: list[Row]) -> Iterator[list[Row]]:
    """Yield the rows by ascending offsets. If the topic was recreated, its new rows are separate from the old ones."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.message.store_timestamp, row.message.queue_offset)):
        if found and row.message.queue_offset <= found[-1].message.queue_offset:
            yield found
            found = []
        found.append(row)
    if found:
        yield found


def row_of(message: Message, values: tuple[Any, ...]) -> Row:
    """Return a row of a file. Raises InvalidBodyError for a store time outside the calendar."""
    return Row(message, values, f"{time_of(message.store_timestamp):%Y-%m-%d}")
