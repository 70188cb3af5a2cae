"""The handler `parquet`: a call returns when the file that has its messages is whole, and in the manifest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rmqd import Batch, MessageQueue
from rmqd_handlers.away import RETRY_FOR, try_again
from rmqd_handlers.extras import need
from rmqd_handlers.message_values import InvalidBodyError, MessageValue, Opened
from rmqd_handlers.refused import ON_INVALID, OnInvalid, acknowledge_written, refuse
from rmqd_handlers.units import DurationSeconds, SizeBytes

from .filling import Filling, Row, row_of
from .manifest import Entry, ListedOffsets, Place, runs_of
from .stores import SCHEME, Bucket, Folder, S3Options, Store
from .type_names import TypeName

if TYPE_CHECKING:
    from .columns import Column

logger = logging.getLogger(__name__)

QUIET_SECONDS: Final = 1.0
"""A queue whose messages pause for so long may have been another member's meanwhile."""
PARTITIONS: Final = {"date", "topic"}


class Parquet:
    """Writes messages to Parquet files by time and size; each is acknowledged once its file is in the manifest."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid", validate_default=True)

        path: str = Field(description="a folder, which is made if there is none; or s3://bucket/folder", min_length=1)
        columns: dict[str, MessageValue] = Field(
            default_factory=dict,
            description="each column and its value: a JSON path into the body such as $.order.id, a field such as "
            "msg_id, or properties.NAME; by default the columns of the pipeline archive",
        )
        types: dict[str, TypeName] = Field(
            default_factory=dict,
            description="types of columns that are no texts: int32, int64, float64, decimal(12,2), boolean, timestamp, "
            "date, binary; fields of a message have their own",
        )
        roll_after: DurationSeconds = Field(
            "1m",  # type: ignore[assignment]
            description="a file is closed so long after its first message; keep it below consume_timeout",
        )
        roll_size: Annotated[SizeBytes, Field(gt=0)] = Field(
            "64MiB",  # type: ignore[assignment]
            description="a file is closed once the bodies of its messages have so many bytes",
        )
        compression: Literal["zstd", "snappy", "gzip", "none"] = Field("zstd", description="of the columns")
        s3: S3Options | None = Field(None, description="endpoint, region, access_key, secret_key, and others, of s3://")
        timeout: Annotated[DurationSeconds, Field(gt=0)] = Field(
            "10s",  # type: ignore[assignment]
            description="how long S3 may take to accept a connection, and to answer",
        )
        on_invalid: OnInvalid = ON_INVALID
        retry_for: DurationSeconds = RETRY_FOR

        @model_validator(mode="after")
        def _fit(self) -> Self:
            if wrong := [name for name in self.types if name not in self.columns]:
                raise ValueError(f"types names columns that are not written: {', '.join(wrong)}")
            if wrong := [name for name in self.columns if name in PARTITIONS]:
                raise ValueError(f"{wrong[0]} is the name of a folder, which readers take as a column: choose another")
            if self.s3 is not None and not self.path.startswith(SCHEME):
                raise ValueError("s3 is for a path that begins with s3://")
            if "://" in self.path and not self.path.startswith(SCHEME):
                raise ValueError(f"{self.path!r} is no path; accepted: a folder, or s3://bucket/folder")
            if self.path.startswith(SCHEME) and self.path[len(SCHEME) :][:1] in ("", "/"):
                raise ValueError(f"{self.path!r} names no bucket; accepted: s3://bucket/folder")
            return self

    def __init__(self, options: Options) -> None:
        need("pyarrow", "parquet")
        from .columns import archived, mapped

        self._options = options
        self._columns: tuple[Column, ...] = mapped(options.columns, options.types) if options.columns else archived()
        self._store: Store
        self._queues: dict[str, _QueueFiles] = {}  # by source
        self._writing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Look at the path now: a folder that cannot be written, or a wrong key, fails the start."""
        options = self._options
        if options.path.startswith(SCHEME):
            self._store = Bucket(options.path, options.s3 or S3Options.model_validate({}), options.timeout)
        else:
            self._store = Folder(Path(options.path))
        await asyncio.to_thread(self._store.check)

    async def stop(self) -> None:
        for task in self._writing:
            task.cancel()
        await asyncio.gather(*self._writing, return_exceptions=True)

    def end_calls(self) -> None:
        """Close the files of all queues: their calls are waited for. One after the other, so that none is tiny."""
        for files in self._queues.values():
            if files.filling is not None and not files.closing:
                files.filling.end("waited_for")

    async def handle(self, batch: Batch) -> None:
        rows = self._rows(batch)
        if rows:
            files = self._files_of(batch)
            if unlisted := await files.unlisted(rows, self._options.retry_for):
                await self._filling_of(files).take(unlisted)
            acknowledge_written(batch)

    def _rows(self, batch: Batch) -> list[Row]:
        rows = []
        for message in batch:
            opened = Opened(message)
            try:
                rows.append(row_of(message, tuple(column.value(opened) for column in self._columns)))
            except InvalidBodyError as error:
                refuse(batch, message, error, self._options.on_invalid)
        return rows

    def _files_of(self, batch: Batch) -> _QueueFiles:
        queue, message = batch.message_queue, batch[0]  # a batch is of one lite topic
        source = str(message.identity.of_queue(queue))
        if source not in self._queues:
            former = None if message.lite_topic else queue  # one name for all lite topics
            self._queues[source] = _QueueFiles(self._store, queue, source, former)
        return self._queues[source]

    def _filling_of(self, files: _QueueFiles) -> Filling:
        """The file that gathers messages of a queue now; a new one closes itself after a while."""
        if files.filling is None:
            files.filling = Filling(files.queue, self._options.roll_size)
            task = asyncio.create_task(self._fill_and_write(files, files.filling), name=f"parquet:{files.queue}")
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
        return files.filling

    async def _fill_and_write(self, files: _QueueFiles, filling: Filling) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(filling.due.wait(), self._options.roll_after)
        files.filling = None
        files.closing.append(filling)
        try:
            for rows in filling.close():
                await self._write(files, rows, filling.why)
        except Exception as error:  # noqa: BLE001  it is raised by the calls that wait
            filling.finished(error)
        else:
            filling.finished()
        finally:
            files.closing.remove(filling)

    async def _write(self, files: _QueueFiles, rows: list[Row], why: str) -> None:
        """Write one file and its entry. What is there of them already is written once more as it was."""
        begun = time.monotonic()
        messages = [row.message for row in rows]
        place = Place.of(files.source, files.queue, rows[0].date, messages[0].topic, messages)
        content = await asyncio.to_thread(self._content, rows)
        entry = Entry(
            file=place.file,
            rows=len(rows),
            size_bytes=content.size,
            date=rows[0].date,
            topic=messages[0].topic,
            source_topic=files.queue.topic,
            broker_name=files.queue.broker_name,
            queue_id=files.queue.queue_id,
            offsets=runs_of(message.queue_offset for message in messages),
            oldest_store_timestamp=min(message.store_timestamp for message in messages),
            newest_store_timestamp=max(message.store_timestamp for message in messages),
        )

        async def put() -> None:
            await asyncio.to_thread(self._store.put, place.file, content)
            await asyncio.to_thread(self._store.put, place.entry, entry.to_json())

        await try_again(put, (OSError,), self._options.retry_for, "parquet")
        files.listed.note(place, entry)
        seconds = round(time.monotonic() - begun, 3)
        logger.info(
            "parquet.file_closed",
            extra={"file": place.file, "rows": len(rows), "bytes": entry.size_bytes, "why": why, "seconds": seconds},
        )

    def _content(self, rows: list[Row]) -> Any:
        """The file's bytes."""
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        from .columns import table

        content = pa.BufferOutputStream()
        compression = self._options.compression
        pq.write_table(table(self._columns, [row.values for row in rows]), content, compression=compression)
        return content.getvalue()


class _QueueFiles:
    """The files of one queue: the one that gathers messages, those that are being written, those that are listed."""

    def __init__(self, store: Store, queue: MessageQueue, source: str, former: MessageQueue | None) -> None:
        self.queue = queue
        self.source = source
        self.filling: Filling | None = None
        self.closing: list[Filling] = []
        self.listed = ListedOffsets(store, source, former)
        self._turn = asyncio.Lock()
        self._next_offset = -1
        self._seen_at = 0.0

    async def unlisted(self, rows: list[Row], retry_for_seconds: float) -> list[Row]:
        """Those of the rows that no file has which is listed. Raises OSError while that cannot be told."""
        first, last = rows[0].message.queue_offset, rows[-1].message.queue_offset
        async with self._turn:
            for closing in list(self.closing):
                await closing.settled(rows)
            now = time.monotonic()
            # after a pause, what follows may be listed too: by a member that had the queue, and did not commit
            is_news = first < self._next_offset or now - self._seen_at > QUIET_SECONDS

            async def look() -> None:
                self.listed.learn(first, last, await asyncio.to_thread(self.listed.read, first, last))

            if is_news or not self.listed.knows(first, last):
                await try_again(look, (OSError,), retry_for_seconds, "parquet")
            self._next_offset, self._seen_at = last + 1, now
        unlisted = [row for row in rows if not self.listed.has(row.message)]
        if len(unlisted) < len(rows):
            left_out = {"queue": str(self.queue), "messages": len(rows) - len(unlisted)}
            logger.info("parquet.listed_before", extra=left_out)
        return unlisted
