"""The data sources of a pipeline: the rows of its group, and the sink of a topic. Used only by `pipeline_query`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from rmqd.config.model.spark import SparkConfig
from rmqd.spark.handlers.group_source import GroupPlan, GroupStreamReader
from rmqd.spark.handlers.pace import Pace
from rmqd.spark.pipelines.lost_rows import LOST_DDL, with_lost_row
from rmqd.spark.pipelines.used_columns import noted_columns
from rmqd.spark.sink.sink_options import SinkOptions
from rmqd.spark.sink.writer import RocketMQWriter
from rmqd.spark.source.batch_reader import read_partition, schema_of
from rmqd.spark.source.columns import ddl
from rmqd.spark.source.options import SourceOptions
from rmqd.spark.values.value_format import ValueFormat

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from rmqd.spark.group_order import GroupOrder
    from rmqd.wire.message_queue import MessageQueue

NAME: Final = "rmqd_pipeline"
SINK_NAME: Final = "rmqd_pipeline_topic"
FIRST_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan(GroupPlan):
    """The settings of a pipeline's source. Picklable."""

    value: ValueFormat | None = None
    """How to decode bodies into a column; set if a schema registry provides the schema."""

    def source_options(self) -> SourceOptions:
        """Return the options, with the schemas that the registry returned when the query was created."""
        options = GroupPlan.source_options(self)  # super() fails in a dataclass with slots
        return options if self.value is None else replace(options, value=self.value)

    def pace(self) -> Pace | None:
        """Return the batch sizes; None if each batch takes all messages, because the trigger paces the batches."""
        config = self.order.settings.spark or SparkConfig()
        if config.trigger and not config.max_offsets_per_trigger:
            return None
        return Pace(FIRST_ROWS, fixed=config.max_offsets_per_trigger, target_seconds=self.target_seconds)


def pipeline_source(
    order: GroupOrder, starting: Mapping[MessageQueue, int] | None, pause_file: str
) -> type[DataSource]:
    """Return the data source of one group, to be registered.

    It takes no options, because Spark displays options, and this specification contains secrets.
    Raises RegistryAwayError if the schema registry does not return the schema of the bodies.
    """
    asking = PipelinePlan(order=order, starting=starting, pause_file=pause_file)
    options = asking.source_options()
    value = options.value.pinned(options.tolerance_seconds) if options.value is not None else None

    class BoundPipelineSource(PipelineSource):
        plan = replace(asking, value=value)

    return BoundPipelineSource


class PipelineSource(DataSource):
    """Created again in several processes; `plan` is an attribute of the class."""

    plan: PipelinePlan

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return NAME

    def schema(self) -> str:
        """Return the columns of `spark.readStream.format("rocketmq")`, and the column of lost messages."""
        options = self.plan.source_options()
        return f"{ddl(options.columns, options.value)}, {LOST_DDL}"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader. It opens no connection until it is used."""
        return PipelineStreamReader(self.plan)


class PipelineStreamReader(GroupStreamReader):
    """Its tasks decode only the columns that the pipeline uses, and report lost messages."""

    def __init__(self, plan: PipelinePlan) -> None:
        super().__init__(plan, plan.pace())
        self._options = replace(self._options, used_columns=noted_columns(plan.pause_file))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition of a micro-batch; called by Spark on executors."""
        decoding = self._options.decoding
        return with_lost_row(read_partition(partition, decoding), schema_of(decoding))


def bound_sink(options: SinkOptions) -> type[DataSource]:
    """Return the sink of one group, to be registered. It takes no options, for the same reason as the source."""

    class BoundPipelineSink(PipelineSink):
        checked = options

    return BoundPipelineSink


class PipelineSink(DataSource):
    """Created again in several processes; `checked` is an attribute of the class."""

    checked: SinkOptions

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return SINK_NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a micro-batch."""
        return RocketMQWriter(self.checked)
