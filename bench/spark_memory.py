"""The same messages in memory, handled by `engine: spark` and by mapInArrow alone.

Neither has a broker. The engine's pulls are answered from memory. The rest is its normal work: decoding, the
process queue, the handler's slots, acknowledging. mapInArrow gets the rows that the source `rocketmq` would make from
the same responses, prepared in advance, and only counts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmqd.config.model.root_model import RootConfig
from rmqd.spark.handlers import range_run
from rmqd.spark.handlers.handler_tasks import started_task_handler
from rmqd.spark.handlers.range_run import PulledResponse
from rmqd.spark.session.group_spec import GroupSpec
from rmqd.spark.session.queue_range import PullSettings, QueueRange
from rmqd.spark.source.arrow_columns import BatchBuilder
from rmqd.spark.source.source_columns import GROUP_COLUMNS, DecodingOptions, schema_ddl
from rmqd.spark.source.source_records import FramedResponse, QueueOrigin
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP = "bench_spark_memory"
TOPIC = "bench_spark_memory"
BROKER = "memory"
QUEUES = 8
HELD = 16_384
"""Messages of a queue in memory. A task repeats them for each round."""
PULL_BATCH = 32
ROWS_PER_BATCH = PullSettings().rows_per_batch
BODY_BYTES = 256
WAIT_SECONDS = 300.0


@functools.cache
def answers(queue_id: int) -> tuple[bytes, ...]:
    """Return the records of a queue, as in a broker's responses to pulls of 32."""
    body = (b"abcdefghijklmnopqrstuvwxyz" * (BODY_BYTES // 26 + 1))[:BODY_BYTES]
    made = time.time_ns() // 1_000_000
    records = [
        encode_message(
            StoredMessage(
                topic=TOPIC,
                body=body,
                queue_id=queue_id,
                queue_offset=offset,
                commit_log_offset=offset * 410,
                born_timestamp=made,
                store_timestamp=made,
                born_host="127.0.0.1:40000",
                store_host="127.0.0.1:10911",
                properties={"UNIQ_KEY": f"7F000001{offset:024X}", "WAIT": "true"},
            )
        )
        for offset in range(HELD)
    ]
    return tuple(b"".join(records[at : at + PULL_BATCH]) for at in range(0, HELD, PULL_BATCH))


@functools.cache
def rows(queue_id: int) -> tuple[pa.RecordBatch, ...]:
    """Return the same records as rows of the source, in batches of its size."""
    builder, origin = BatchBuilder(DecodingOptions(GROUP_COLUMNS)), QueueOrigin(MessageQueue(TOPIC, BROKER, queue_id))
    batches = []
    for number, answer in enumerate(answers(queue_id), 1):
        builder.records.add(FramedResponse(answer, 0), 0, HELD, origin, number * PULL_BATCH)
        if number * PULL_BATCH % ROWS_PER_BATCH == 0:
            batches.append(builder.finish())
    return tuple(batches)


class MemoryPulls:
    """Replaces AsyncRangePuller and its plan: answers each pull immediately."""

    def __init__(self, _client: object, queue_range: QueueRange, _open_bodies: object) -> None:
        self.plan = self
        self.lost_messages = 0
        self.largest_bytes = 0
        self.spans: list[int] = []  # the low ends of the pulls in flight
        self._queue = queue_range.queue
        self._answers = answers(queue_range.queue.queue_id)
        self._in_flight = queue_range.pull.max_in_flight
        self._taken = 0

    @property
    def is_unfinished(self) -> bool:
        return self._taken < len(self._answers)

    @property
    def max_awaited_messages(self) -> int:
        return len(self.spans) * PULL_BATCH

    @property
    def planned_end(self) -> int:
        return (self._taken + len(self.spans)) * PULL_BATCH

    def add_span(self) -> bool:
        if len(self.spans) >= self._in_flight or self._taken + len(self.spans) >= len(self._answers):
            return False
        self.spans.append(self.planned_end)
        return True

    async def next_response(self) -> PulledResponse:
        await asyncio.sleep(0)  # the same wait as for a response that has already arrived
        answer = self._answers[self._taken]
        block = decode_messages(answer, self._queue, 0)
        self.largest_bytes = max(self.largest_bytes, len(answer))
        low = self.spans.pop(0)
        self._taken += 1
        return PulledResponse(low, low + PULL_BATCH, block, 0.0)

    def close(self) -> None:
        self.spans.clear()


@contextlib.contextmanager
def _from_memory() -> Iterator[None]:
    """Replace AsyncRangePuller during the block. Spark reuses its processes for real pulls."""
    pulls = vars(range_run)["AsyncRangePuller"]
    vars(range_run)["AsyncRangePuller"] = MemoryPulls
    try:
        yield
    finally:
        vars(range_run)["AsyncRangePuller"] = pulls


class _Reader(DataSourceReader):
    """A reader with a partition for each queue."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(queue_id) for queue_id in range(QUEUES)]


class EngineReader(_Reader):
    """Runs the engine on each queue, once for each round."""

    def __init__(self, rounds: int, order: GroupSpec) -> None:
        super().__init__(rounds)
        self._order = order

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settings = self._order.settings
        process = started_task_handler(self._order, f"{GROUP} {settings.consume_message_batch_max_size}")
        span = QueueRange(
            queue=MessageQueue(TOPIC, BROKER, partition.value),
            start=0,
            end=HELD,
            access=self._order.access,
            pull=PullSettings(group=GROUP, max_in_flight=8),
        )
        with _from_memory():
            outcomes = [process.handle(span) for _ in range(self._rounds)]
        acknowledged = sum(topic.handled["acked"] for outcome in outcomes for topic in outcome.topic_counters)
        yield pa.RecordBatch.from_pydict({"messages": pa.array([acknowledged], pa.int64())})


class RowsReader(_Reader):
    """Returns each queue's rows, once for each round."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for _ in range(self._rounds):
            yield from rows(partition.value)


class MemoryRows(DataSource):
    """A source with the rows of the source `rocketmq`."""

    @classmethod
    def name(cls) -> str:
        return "bench_memory_rows"

    def schema(self) -> str:
        return schema_ddl(GROUP_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return RowsReader(int(self.options["rounds"]))


def _engine_source(of: GroupSpec) -> type[DataSource]:
    class MemoryEngine(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bench_memory_engine"

        def schema(self) -> str:
            return "messages bigint"

        def reader(self, schema: StructType) -> DataSourceReader:
            return EngineReader(int(self.options["rounds"]), of)

    return MemoryEngine


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    seen = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"messages": pa.array([seen], pa.int64())})


def through_map_in_arrow(spark: SparkSession, messages: int) -> float:
    """Return the rows per second through mapInArrow."""
    spark.dataSource.register(MemoryRows)
    frame = spark.read.format(MemoryRows.name()).option("rounds", str(rounds(messages))).load()
    return _rate(frame.mapInArrow(_count, "messages bigint"), messages)


def through_engine(spark: SparkSession, nameserver: str, batch_size: int, messages: int) -> float:
    """Return the messages per second of the engine, with an empty handler and batches of up to `batch_size`."""
    source = _engine_source(order(nameserver, batch_size))
    spark.dataSource.register(source)
    return _rate(spark.read.format(source.name()).option("rounds", str(rounds(messages))).load(), messages)


def order(nameserver: str, batch_size: int) -> GroupSpec:
    """Return a group with an empty handler and batches of up to `batch_size` messages."""
    group = {
        "subscriptions": {TOPIC: "*"},
        "engine": "spark",
        "handler": {"plugin": "bench.handler:Nothing"},
        "consume_message_batch_max_size": batch_size,
    }
    config = RootConfig.model_validate({"nameserver": nameserver, "groups": {GROUP: group}})
    return GroupSpec(GROUP, config)


def rounds(messages: int) -> int:
    """Return the rounds for a total of `messages`. Raises ValueError unless the messages in memory divide it."""
    found, rest = divmod(messages, QUEUES * HELD)
    if rest:
        raise ValueError(f"{messages} is not a valid number of messages; expected a multiple of {QUEUES * HELD}")
    return found


def _rate(frame: DataFrame, messages: int) -> float:
    began = time.perf_counter()
    seen = sum(int(row.messages) for row in frame.collect())
    seconds = time.perf_counter() - began
    if seen != messages:
        raise RuntimeError(f"{seen} of {messages} messages arrived")
    return messages / seconds
