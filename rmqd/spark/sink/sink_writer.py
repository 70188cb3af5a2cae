"""The format `rocketmq` as a sink: `df.write.format("rocketmq")` and `df.writeStream`.

Delivery is at least once: a task returns its commit message only when all of its rows are stored. A task that Spark
retries sends all of its rows again, with the same RMQD_QUERY, RMQD_BATCH, RMQD_PART and RMQD_SEQ.

A process on an executor keeps one producer for each ClientAccess. The producer's event loop runs in the task's thread
while a batch of rows is sent. It stops when all sends have ended, because unfinished sends would time out. A second
thread would gain nothing, because the process then reads the next batch from Spark. A request is a RocketMQ batch:
several messages of one topic and queue, none delayed, which the broker stores separately. Rows with the same order key
are sent in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import structlog
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqd.client.sending.outgoing_message import (
    MessageQueueSelector,
    OutgoingMessage,
    may_retry_send,
    select_by_hash,
    select_by_id,
)
from rmqd.codes import ResponseCode
from rmqd.errors import InvalidMessageError, RmqdError
from rmqd.errors.broker_errors import BrokerError
from rmqd.spark.session.spark_access import ClientAccess
from rmqd.spark.session.spark_cluster import make_client
from rmqd.spark.session.spark_process import exclude_imports_from_gc, log_to_stderr
from rmqd.spark.sink.sink_rows import (
    BATCH_PROPERTY,
    PART_PROPERTY,
    QUERY_PROPERTY,
    OutgoingRow,
    SinkOptions,
    outgoing_rows,
    parse_sink_options,
    skip_or_raise,
)
from rmqd.wire.topics import RETRY_PREFIX

MAX_REQUEST_ROWS: Final = 32
MAX_REQUEST_BYTES: Final = 256 * 1024  # bodies and properties together; brokers accept 4 MiB unless configured lower
MAX_MESSAGE_HEAD_BYTES: Final = 256  # upper limit for the size of a message without its body and properties


def rows_by_request(rows: Iterable[OutgoingRow]) -> Iterator[Sequence[OutgoingRow]]:
    """Group rows into requests, and yield the rows of each request. Raises the errors of `rows`."""
    collected: dict[object, list[OutgoingRow]] = {}
    sizes: dict[object, int] = {}
    for row in rows:
        message = row.message
        # brokers reject such messages in a RocketMQ batch
        if message.delay_level or message.needs_timer or message.topic.startswith(RETRY_PREFIX):
            if before := collected.pop(row.order_key, None) if row.order_key is not None else None:
                yield before  # earlier rows with the same order key must be stored first
            yield [row]
            continue
        key = (message.topic, None) if row.order_key is None else row.order_key
        size = _size(message)
        if key in collected and (len(collected[key]) == MAX_REQUEST_ROWS or sizes[key] + size > MAX_REQUEST_BYTES):
            yield collected.pop(key)
        if key not in collected:
            collected[key], sizes[key] = [], 0
        collected[key].append(row)
        sizes[key] += size
    yield from collected.values()


def _size(message: OutgoingMessage) -> int:
    properties = sum(len(name) + len(value) for name, value in message.properties.items())
    return MAX_MESSAGE_HEAD_BYTES + len(message.body) + 4 * (properties + len(message.keys) + len(message.tags))


log = structlog.get_logger(__name__)

RETRY_PAUSE_SECONDS: Final = 0.5

_senders: dict[tuple[int, int, ClientAccess], RowSender] = {}


def row_sender_of(access: ClientAccess) -> RowSender:
    """Return this thread's sender for `access`. Raises RmqdError if a file or secret is missing."""
    key = os.getpid(), threading.get_ident(), access
    if key not in _senders:
        _senders[key] = RowSender(access)
    return _senders[key]


def close_row_senders() -> None:
    """Close all senders of this process and thread. A later `row_sender_of` creates new senders."""
    for key in [key for key in _senders if key[:2] == (os.getpid(), threading.get_ident())]:
        _senders.pop(key).close()


class RowSender:
    """Sends rows, and blocks until they are stored. Use it in the thread that created it, outside an event loop."""

    def __init__(self, access: ClientAccess) -> None:
        log_to_stderr()
        options = access.client_options()
        self._loop = asyncio.new_event_loop()
        self._client = self._loop.run_until_complete(make_client(options))
        self._served: set[str] = set()

    def send(self, rows: Iterable[OutgoingRow], options: SinkOptions) -> int:
        """Send all rows, with `max_in_flight` concurrent requests. Return the number of stored rows.

        A row is retried for `tolerance_seconds` while brokers or name servers are unavailable. Raises the RmqdError of
        the first row that failed; other rows may be stored then.
        """
        try:
            return self._loop.run_until_complete(self._send(rows, options))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the other exceptions are from concurrent requests

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()

    def refresh_routes(self) -> None:
        """Refresh the routes of all topics that rows were sent to, because queues may have changed. Ignores errors."""
        for topic in self._served:
            with contextlib.suppress(RmqdError):
                self._loop.run_until_complete(self._client.routes.refresh(topic))

    async def _send(self, rows: Iterable[OutgoingRow], options: SinkOptions) -> int:
        turn = _Turn(rows_by_request(rows))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(options.max_in_flight):
                tasks.create_task(self._send_in_turn(turn, options))
        return turn.count

    async def _send_in_turn(self, turn: _Turn, options: SinkOptions) -> None:
        for bundle in turn.bundles:
            lane = bundle[0].order_key
            if lane is None:
                stored = await self._store_bundle(bundle, options)
            else:
                async with turn.in_order(lane):
                    stored = await self._store_bundle(bundle, options)
            turn.count += len(stored)

    async def _store_bundle(self, bundle: Sequence[OutgoingRow], options: SinkOptions) -> Sequence[OutgoingRow]:
        """Send the rows in one request, or one by one if the broker refuses the request. Return the stored rows."""
        if len(bundle) > 1:
            try:
                await self._store(bundle, options.tolerance_seconds)
            except (BrokerError, InvalidMessageError) as error:
                if may_retry_send(error, self._served):
                    raise
            else:
                return bundle
        stored = []
        for row in bundle:
            try:
                await self._store([row], options.tolerance_seconds)
                stored.append(row)
            except (BrokerError, InvalidMessageError) as error:
                if isinstance(error, BrokerError) and error.code != ResponseCode.MESSAGE_ILLEGAL:
                    raise
                skip_or_raise(row.source_place, row.message.properties, error, options)
        return stored

    async def _store(self, rows: Sequence[OutgoingRow], tolerance: float) -> None:
        topic, selector = rows[0].message.topic, _selector(rows[0])
        until = asyncio.get_running_loop().time() + tolerance
        while True:
            try:
                if len(rows) == 1:
                    await self._client.producer.send(rows[0].message, selector=selector)
                else:
                    await self._client.producer.send_batch([row.message for row in rows], selector=selector)
                self._served.add(topic)
                return
            except RmqdError as error:
                if (
                    not may_retry_send(error, self._served)
                    or asyncio.get_running_loop().time() + RETRY_PAUSE_SECONDS > until
                ):
                    raise
                log.warning("spark.send_retried", topic=topic, error=str(error))
            await asyncio.sleep(RETRY_PAUSE_SECONDS)
            with contextlib.suppress(RmqdError):
                await self._client.routes.refresh(topic)


class _Turn:
    """The bundles that several coroutines send. A bundle is the rows of one request. `count` counts stored rows."""

    def __init__(self, all_bundles: Iterator[Sequence[OutgoingRow]]) -> None:
        self.bundles = all_bundles
        self.count = 0
        self._last: dict[object, asyncio.Event] = {}

    @contextlib.asynccontextmanager
    async def in_order(self, lane: object) -> AsyncIterator[None]:
        """Wait until the previous bundle with this order key is stored. If it fails, the task group is cancelled."""
        former, mine = self._last.get(lane), asyncio.Event()
        self._last[lane] = mine
        if former is not None:
            await former.wait()
        yield
        mine.set()
        if self._last[lane] is mine:
            del self._last[lane]


def _selector(row: OutgoingRow) -> MessageQueueSelector | None:
    if row.queue_id is not None:
        return select_by_id(row.queue_id, row.broker)
    return select_by_hash(row.message.sharding_key) if row.message.sharding_key else None


# local properties that Spark sets for the tasks of a streaming query
QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"


@dataclass
class StoredRowCount(WriterCommitMessage):
    """The number of messages that a task has stored."""

    messages: int


def checked_sink_options(
    values: Mapping[str, str], schema: StructType, *, overwrite: bool, default_access: ClientAccess | None = None
) -> SinkOptions:
    """Call `parse_sink_options` with the columns of a Spark schema. Raises ConfigError with a line for each problem."""
    columns = {column.name: column.dataType.simpleString() for column in schema.fields}
    return parse_sink_options(values, columns, overwrite=overwrite, default_access=default_access)


class RocketMQWriter(DataSourceArrowWriter):
    """The writer of `df.write`. The driver creates it. Spark pickles it, and calls `write` on executors."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredRowCount:
        """Called on executors for each partition. Send the partition's rows."""
        return _write(iterator, self._options, self._id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Called when a task failed. Log how many messages are stored; they cannot be removed from the topic."""
        _log_stored(messages, "")


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`, created for each batch. A commit does nothing, because all rows are stored."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredRowCount:
        """Called on executors for each partition of a batch. Send the partition's rows."""
        return _write(iterator, self._options, "")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Called when a task failed. Log how many messages are stored; the repeated batch sends them again."""
        _log_stored(messages, str(batchId))


def _write(batches: Iterator[pa.RecordBatch], options: SinkOptions, query: str) -> StoredRowCount:
    context = TaskContext.get()
    marks = {QUERY_PROPERTY: query, BATCH_PROPERTY: "", PART_PROPERTY: "0"}
    if context is not None:
        marks = {
            QUERY_PROPERTY: context.getLocalProperty(QUERY_ID_PROPERTY) or query,
            BATCH_PROPERTY: context.getLocalProperty(BATCH_ID_PROPERTY) or "",
            PART_PROPERTY: str(context.partitionId()),
        }
    sender = row_sender_of(options.access)
    sender.refresh_routes()
    stored = first = 0
    for batch in batches:
        stored += sender.send(outgoing_rows(batch, options, marks, first), options)
        first += batch.num_rows
    exclude_imports_from_gc()
    return StoredRowCount(stored)


def _log_stored(messages: list[WriterCommitMessage | None], batch: str) -> None:
    log_to_stderr()
    stored = sum(message.messages for message in messages if isinstance(message, StoredRowCount))
    log.warning("spark.write_failed", batch=batch, stored=stored, note="at least these messages are in the topic")
