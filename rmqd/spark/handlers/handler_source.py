"""The source whose tasks run a group's handler: a task pulls its range of a queue, and handles it.

It is the format `rmqd_handler`, used only by `handler_query`. It returns one row for each range: the range's outcome.
It chooses ranges, and commits offsets, like the format `rocketmq`.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from rmqd.config.model.spark import SparkConfig
from rmqd.spark.cluster import cluster_of
from rmqd.spark.handlers.group_source import GroupPlan, GroupStreamReader
from rmqd.spark.handlers.pace import Pace
from rmqd.spark.queue_range import split_ranges
from rmqd.spark.source.batch_reader import ranges_of
from rmqd.spark.source.offsets import Offsets

if TYPE_CHECKING:
    from rmqd.spark.group_order import GroupOrder
    from rmqd.wire.message_queue import MessageQueue

NAME: Final = "rmqd_handler"
OUTCOME: Final = pa.schema([("outcome", pa.binary())])
LEAST_PIECE: Final = 1000  # messages that justify another task


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerPlan(GroupPlan):
    """The settings of a handler's source. Picklable."""

    key: str
    """A hash of the configuration. A worker process starts a handler once for each key."""
    slots: int
    """Number of tasks that Spark runs concurrently."""

    def pace(self) -> Pace:
        """Return the Pace that sizes the group's batches."""
        settings = self.order.settings
        concurrency = settings.handler.most_calls if settings.handler is not None else 1
        calls = 1 if settings.consume_mode == "orderly" else concurrency
        return Pace(
            # enough for every slot of every task, with full batches
            self.slots * calls * settings.consume_message_batch_max_size,
            fixed=(settings.spark or SparkConfig()).max_offsets_per_trigger,
            per_second=settings.pull_rate_limit,
            target_seconds=self.target_seconds,
        )


def bound_to(
    order: GroupOrder, starting: Mapping[MessageQueue, int] | None, pause_file: str, slots: int
) -> type[DataSource]:
    """Return the source class of one group, to be registered.

    It takes no options, because Spark displays options, and this specification contains secrets.
    """

    class BoundHandlerSource(HandlerSource):
        plan = HandlerPlan(
            order=order,
            starting=starting,
            pause_file=pause_file,
            key=hashlib.sha256(pickle.dumps(order)).hexdigest(),
            slots=slots,
        )

    return BoundHandlerSource


class HandlerSource(DataSource):
    """Created again in several processes; `plan` is an attribute of the class."""

    plan: HandlerPlan

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return NAME

    def schema(self) -> str:
        """Return the schema: one column with an encoded RangeOutcome."""
        return "outcome binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader. It opens no connection until it is used."""
        return HandlerStreamReader(self.plan)


class HandlerStreamReader(GroupStreamReader):
    """Plans ranges on the driver, and handles them on executors."""

    def __init__(self, plan: HandlerPlan) -> None:
        super().__init__(plan, plan.pace())
        self._plan = plan

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges between two offsets. Unless the group is orderly, they are split if tasks would be idle."""
        spans = Offsets.of(start).ranges(Offsets.of(end))
        ranges = ranges_of(cluster_of(self._options.access), self._options, spans)
        if self._plan.order.settings.consume_mode != "orderly":
            pieces = min(self._plan.slots, sum(map(len, ranges)) // LEAST_PIECE)
            ranges = split_ranges(ranges, pieces or None, None)
        return [InputPartition(one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called on executors: handle the range, and return its outcome."""
        from rmqd.spark.handlers.handler_process import handler_process

        if partition.value is None:  # Spark's partition if there is nothing to read
            return
        outcome = handler_process(self._plan.order, self._plan.key).handle(partition.value)
        yield pa.RecordBatch.from_arrays([pa.array([outcome.encode()], pa.binary())], schema=OUTCOME)
