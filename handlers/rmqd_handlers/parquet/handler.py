"""The handler `parquet`: a call returns when the file with its messages is complete and listed in the manifest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pydantic import Field, model_validator

from rmqd import Batch, Message, MessageQueue
from rmqd.handler_api.destinations.archive_manifest import encode
from rmqd_handlers.away import ON_INVALID, RETRY_FOR, OnInvalid, acknowledge_written, try_again, valid
from rmqd_handlers.message_values import MessageValue, ParsedMessage, time_of
from rmqd_handlers.option_kinds import DurationSeconds, HandlerOptions, SizeBytes, TypeName, option, require
from rmqd_handlers.parquet.stored_files import (
    OFFSETS_PER_FOLDER,
    SCHEME,
    Bucket,
    ListedOffsets,
    LocalFolder,
    S3Options,
    Store,
    entry_of,
)

if TYPE_CHECKING:
    from rmqd_handlers.parquet.columns import ParquetColumn


@dataclass(frozen=True, slots=True)
class Row:
    """A message with the values of its columns."""

    message: Message
    values: tuple[Any, ...]
    date: str
    """The day when the broker stored the message, in UTC."""

    @property
    def place(self) -> tuple[str, str, int]:
        """The date, the topic, and the number of the range of offsets in the manifest.

        Rows with the same place are written to one file.
        """
        return self.date, self.message.topic, self.message.queue_offset // OFFSETS_PER_FOLDER


class UnwrittenRows:
    """Rows of one queue that are not written yet. Calls of the handler add rows, and wait until the file is written."""

    def __init__(self, queue: MessageQueue, most_bytes: int) -> None:
        self.queue = queue
        self.size_bytes = 0
        """The total size of the messages' bodies."""
        self.due = asyncio.Event()
        """Set when the file must be written now, before `roll_after` has passed."""
        self.why = "roll_after"
        self._most_bytes = most_bytes
        self._parts: dict[object, list[Row]] = {}
        self._is_closed = False
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._offsets: frozenset[int] = frozenset()

    async def add_and_wait(self, rows: list[Row]) -> None:
        """Add the rows of a call, and wait until their file is in the manifest. Raises any exception of the write.

        If a call is cancelled before `close`, its rows are removed, because their messages are redelivered.
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
        if not self.due.is_set():
            self.why = why
            self.due.set()

    def close(self) -> Iterator[list[Row]]:
        """Accept no more rows. Yields the rows of each file to write, sorted by offset."""
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
        """Called when the rows are written, or the write failed: the waiting calls return, or raise `error`."""
        if error is None:
            self._done.set_result(None)
        elif self._parts:
            self._done.set_exception(error)

    async def wait_if_redelivered(self, rows: list[Row]) -> None:
        """If some of the redelivered `rows` are among these rows, wait until the write has ended."""
        if not self._offsets.isdisjoint(row.message.queue_offset for row in rows):
            await asyncio.wait((self._done,))


def _apart(rows: list[Row]) -> Iterator[list[Row]]:
    """Yield lists of rows by ascending offsets. Rows of a topic before and after its recreation are separate."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.message.store_timestamp, row.message.queue_offset)):
        if found and row.message.queue_offset <= found[-1].message.queue_offset:
            yield found
            found = []
        found.append(row)
    if found:
        yield found


logger = logging.getLogger(__name__)

NEWS_AFTER_SECONDS: Final = 1.0
"""If a queue had no messages for this long, another member may have owned it and written files meanwhile."""
PARTITIONS: Final = {"date", "topic"}


class Parquet:
    """Writes messages to Parquet files by time and size. A message is acknowledged when its file is in the manifest."""

    class Options(HandlerOptions):
        path: str = Field(
            description="a folder, which is created if it is missing; or s3://bucket/folder", min_length=1
        )
        columns: dict[str, MessageValue] = option(
            {},
            "each column and its value: a JSON path into the body such as $.order.id, a field such as "
            "msg_id, or properties.NAME; default: the columns of the pipeline archive",
        )
        types: dict[str, TypeName] = option(
            {},
            "types of columns that are not text: int32, int64, float64, decimal(12,2), boolean, timestamp, "
            "date, binary; fields of a message have default types",
        )
        roll_after: DurationSeconds = option(
            "1m", "a file is closed this long after its first message; keep it below consume_timeout"
        )
        roll_size: SizeBytes = option("64MiB", "a file is closed when the bodies of its messages reach this size", gt=0)
        compression: Literal["zstd", "snappy", "gzip", "none"] = option("zstd", "compression of the columns")
        s3: S3Options | None = option(None, "for s3://: endpoint, region, access_key, secret_key, and others")
        timeout: DurationSeconds = option("10s", "timeout for connecting to S3, and for its responses", gt=0)
        on_invalid: OnInvalid = ON_INVALID
        retry_for: DurationSeconds = RETRY_FOR

        @model_validator(mode="after")
        def _fit(self) -> Self:
            if wrong := [name for name in self.types if name not in self.columns]:
                raise ValueError(f"types contains columns that are not in columns: {', '.join(wrong)}")
            if wrong := [name for name in self.columns if name in PARTITIONS]:
                raise ValueError(
                    f"{wrong[0]} is the name of a folder, which readers treat as a column; use another name"
                )
            if self.s3 is not None and not self.path.startswith(SCHEME):
                raise ValueError("s3 needs a path that starts with s3://")
            if re.match(r"~|[^/]*:/", self.path) and not self.path.startswith(SCHEME):
                raise ValueError(f"{self.path!r} is not a valid path; expected a folder, or s3://bucket/folder")
            if self.path.startswith(SCHEME) and self.path[len(SCHEME) :][:1] in ("", "/"):
                raise ValueError(f"{self.path!r} has no bucket; expected s3://bucket/folder")
            return self

    def __init__(self, options: Options) -> None:
        require("pyarrow", "parquet")
        from rmqd_handlers.parquet.columns import archive_columns, columns_of_options

        self._options = options
        self._columns: tuple[ParquetColumn, ...] = (
            columns_of_options(options.columns, options.types) if options.columns else archive_columns()
        )
        self._store: Store
        self._queues: dict[str, _QueueFiles] = {}  # the key is the text of the queue's identity
        self._writing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Check the path now: a folder that is not writable, or a wrong key, fails the start."""
        options = self._options
        if options.path.startswith(SCHEME):
            self._store = Bucket(options.path, options.s3 or S3Options.model_validate({}), options.timeout)
        else:
            self._store = LocalFolder(Path(options.path))
        await asyncio.to_thread(self._store.check)

    async def stop(self) -> None:
        for task in self._writing:
            task.cancel()
        await asyncio.gather(*self._writing, return_exceptions=True)

    def end_calls(self) -> None:
        """Called while rmqd waits for open calls: close each queue's file, unless its last file is being written."""
        for files in self._queues.values():
            if files.filling is not None and not files.closing:
                files.filling.end("waited_for")

    async def handle(self, batch: Batch) -> None:
        if rows := [row for _, row in valid(batch, self._row, self._options.on_invalid)]:
            files = self._files_of(batch)
            if unlisted := await files.rows_without_file(rows, self._options.retry_for):
                await self._filling_of(files).add_and_wait(unlisted)
            acknowledge_written(batch)

    def _row(self, opened: ParsedMessage) -> Row:
        day = f"{time_of(opened.message.store_timestamp):%Y-%m-%d}"
        return Row(opened.message, tuple(column.value(opened) for column in self._columns), day)

    def _files_of(self, batch: Batch) -> _QueueFiles:
        queue, message = batch.message_queue, batch[0]  # a batch belongs to one lite topic
        source = str(message.identity.of_queue(queue))
        if source not in self._queues:
            # Ignore entries of rmqd 0.1.0 for lite topics, which all had the same name, and in a replay, which must
            # write messages again.
            former = None if message.lite_topic or message.identity.replay else queue
            self._queues[source] = _QueueFiles(self._store, queue, source, former)
        return self._queues[source]

    def _filling_of(self, files: _QueueFiles) -> UnwrittenRows:
        """Return the open UnwrittenRows of a queue. If there are none, create them, and schedule their write."""
        if files.filling is None:
            files.filling = UnwrittenRows(files.queue, self._options.roll_size)
            task = asyncio.create_task(self._fill_and_write(files, files.filling), name=f"parquet:{files.queue}")
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
        return files.filling

    async def _fill_and_write(self, files: _QueueFiles, filling: UnwrittenRows) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(filling.due.wait(), self._options.roll_after)
        files.filling = None
        files.closing.append(filling)
        try:
            for rows in filling.close():
                await self._write(files, rows, filling.why)
        except Exception as error:  # noqa: BLE001  the waiting calls raise it
            filling.finished(error)
        else:
            filling.finished()
        finally:
            files.closing.remove(filling)

    async def _write(self, files: _QueueFiles, rows: list[Row], why: str) -> None:
        """Write one file, then its entry in the manifest. Existing files are overwritten with the same content."""
        begun = time.monotonic()
        content = await asyncio.to_thread(self._content, rows)
        messages = [row.message for row in rows]
        path, entry = entry_of(files.source, files.queue, rows[0].date, messages, content.size)

        async def put() -> None:
            await asyncio.to_thread(self._store.put, entry.file, content)
            await asyncio.to_thread(self._store.put, path, encode(entry))

        await try_again(put, (OSError,), self._options.retry_for, "parquet")
        files.listed.note(path, entry)
        seconds = round(time.monotonic() - begun, 3)
        logger.info(
            "parquet.file_closed",
            extra={"file": entry.file, "rows": len(rows), "bytes": entry.size_bytes, "why": why, "seconds": seconds},
        )

    def _content(self, rows: list[Row]) -> Any:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        from rmqd_handlers.parquet.columns import table

        content = pa.BufferOutputStream()
        compression = self._options.compression
        pq.write_table(table(self._columns, [row.values for row in rows]), content, compression=compression)
        return content.getvalue()


class _QueueFiles:
    """The files of one queue: the file that gathers rows, files that are being written, and files in the manifest."""

    def __init__(self, store: Store, queue: MessageQueue, source: str, former: MessageQueue | None) -> None:
        self.queue = queue
        self.source = source
        self.filling: UnwrittenRows | None = None
        self.closing: list[UnwrittenRows] = []
        self.listed = ListedOffsets(store, source, former)
        self._turn = asyncio.Lock()
        self._next_offset = -1
        self._seen_at = 0.0

    async def rows_without_file(self, rows: list[Row], retry_for_seconds: float) -> list[Row]:
        """Return the rows that are not in a file of the manifest. Raises OSError if the manifest cannot be read."""
        first, last = rows[0].message.queue_offset, rows[-1].message.queue_offset
        async with self._turn:
            for closing in list(self.closing):
                await closing.wait_if_redelivered(rows)
            now = time.monotonic()
            # after a pause, read the manifest again: another owner may have written files and not committed
            is_news = first < self._next_offset or now - self._seen_at > NEWS_AFTER_SECONDS

            async def look() -> None:
                self.listed.add_reading(first, last, await asyncio.to_thread(self.listed.read, first, last))

            if is_news or not self.listed.covers(first, last):
                await try_again(look, (OSError,), retry_for_seconds, "parquet")
            self._next_offset, self._seen_at = last + 1, now
        unlisted = [row for row in rows if not self.listed.has(row.message)]
        if len(unlisted) < len(rows):
            left_out = {"queue": str(self.queue), "messages": len(rows) - len(unlisted)}
            logger.info("parquet.listed_before", extra=left_out)
        return unlisted
