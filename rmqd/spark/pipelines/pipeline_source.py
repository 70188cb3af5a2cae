"""What a pipeline has of ours: the source of its group's rows, and the sink of a topic; for `pipeline_query` alone."""

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
    """What the source's processes are told. Pickles."""

    value: ValueFormat | None = None
    """How bodies become a column, where a schema registry had to be asked."""

    def source_options(self) -> SourceOptions:
        """With what the registry said when the query was made."""
        options = GroupPlan.source_options(self)  # super() does not know the class that slots make
        return options if self.value is None else replace(options, value=self.value)

    def pace(self) -> Pace | None:
        """How large batches are: None where each takes what there is, since the next comes at its time only."""
        config = self.order.settings.spark or SparkConfig()
        if config.trigger and not config.max_offsets_per_trigger:
            return None
        return Pace(FIRST_ROWS, fixed=config.max_offsets_per_trigger, target_seconds=self.target_seconds)


def pipeline_source(
    order: GroupOrder, starting: Mapping[MessageQueue, int] | None, pause_file: str
) -> type[DataSource]:
    """The source of one group, to be registered: no options, as Spark shows those, and the order has secrets.

    Raises RegistryAwayError where bodies have a schema registry that does not say theirs.
    """
    asking = PipelinePlan(order=order, starting=starting, pause_file=pause_file)
    options = asking.source_options()
    value = options.value.pinned(options.tolerance_seconds) if options.value is not None else None

    class BoundPipelineSource(PipelineSource):
        plan = replace(asking, value=value)

    return BoundPipelineSource


class PipelineSource(DataSource):
    """Made anew in several processes; `plan` is of the class."""

    plan: PipelinePlan

    @classmethod
    def name(cls) -> str:
        """What `format()` is given."""
        return NAME

    def schema(self) -> str:
        """The columns of `spark.readStream.format("rocketmq")`, and that of losses."""
        options = self.plan.source_options()
        return f"{ddl(options.columns, options.value)}, {LOST_DDL}"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader, which connects to nothing until it is asked."""
        return PipelineStreamReader(self.plan)


class PipelineStreamReader(GroupStreamReader):
    """Its tasks decode the columns that the pipeline uses, and tell what they have lost."""

    def __init__(self, plan: PipelinePlan) -> None:
        super().__init__(plan, plan.pace())
        self._options = replace(self._options, used_columns=noted_columns(plan.pause_file))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition of a micro-batch; called by Spark on executors."""
        decoding = self._options.decoding
        return with_lost_row(read_partition(partition, decoding), schema_of(decoding))


def bound_sink(options: SinkOptions) -> type[DataSource]:
    """The sink of one group, to be registered, without options for the same reason."""

    class BoundPipelineSink(PipelineSink):
        checked = options

    return BoundPipelineSink


class PipelineSink(DataSource):
    """Made anew in several processes; `checked` is of the class."""

    checked: SinkOptions

    @classmethod
    def name(cls) -> str:
        """What `format()` is given."""
        return SINK_NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For a micro-batch."""
        return RocketMQWriter(self.checked)
