"""The file that messages of a queue gather for, and the calls that wait for it."""

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
    """A message, and what the columns have of it."""

    message: Message
    values: tuple[Any, ...]
    date: str
    """The day on which the broker stored it, in UTC."""

    @property
    def place(self) -> tuple[str, str, int]:
        """Rows of one place go to one file: its folders are the first two, and its entry's folder is of the third."""
        return self.date, self.message.topic, self.message.queue_offset // RANGE


class Filling:
    """Rows of one queue, until they are written. The handler's calls add them and wait; nobody else does."""

    def __init__(self, queue: MessageQueue, most_bytes: int) -> None:
        self.queue = queue
        self.size_bytes = 0
        """Of the bodies."""
        self.due = asyncio.Event()
        """Set when it is to be written at once."""
        self.why = "roll_after"
        self._most_bytes = most_bytes
        self._parts: dict[object, list[Row]] = {}
        self._is_closed = False
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._offsets: frozenset[int] = frozenset()

    async def take(self, rows: list[Row]) -> None:
        """Add the rows of a call, and wait until they are listed. Raises what writing them raised.

        A call that is cancelled before the file is closed takes its rows along: they come again.
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
        """Have it written at once."""
        if not self.due.is_set():
            self.why = why
            self.due.set()

    def close(self) -> Iterator[list[Row]]:
        """Take no more rows. Gives those of each file that is to be written, in the order of their offsets."""
        self._is_closed = True
        # once each: a queue that is dropped and taken again has messages come a second time beside their open calls
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
        """Wait for the end of its writing, if it has some of these rows: they came again meanwhile."""
        if not self._offsets.isdisjoint(row.message.queue_offset for row in rows):
            await asyncio.wait((self._done,))


def _apart(rows: list[Row]) -> Iterator[list[Row]]:
    """The rows by ascending offsets; those of a topic that was made anew meanwhile apart from the former ones."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.message.store_timestamp, row.message.queue_offset)):
        if found and row.message.queue_offset <= found[-1].message.queue_offset:
            yield found
            found = []
        found.append(row)
    if found:
        yield found


def row_of(message: Message, values: tuple[Any, ...]) -> Row:
    """A row of a file. Raises InvalidBodyError for a time of storing that no calendar has."""
    return Row(message, values, f"{time_of(message.store_timestamp):%Y-%m-%d}")
