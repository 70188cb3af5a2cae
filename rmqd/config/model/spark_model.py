"""Additional settings of a group with `engine: spark`: master and checkpoint, pipelines, sinks."""

# No `from __future__ import annotations`: pydantic would have to parse every annotation from text at every start.

from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from rmqd.config.model.forms import ConfigSection, setting
from rmqd.runtime.value_kinds import Choice, Integer, Text, parse_duration_ms

AVAILABLE_NOW = "available_now"

OutputMode = Literal["append", "update", "complete"]
BadRows = Literal["fail", "leave_out"]
SinkFormat = Literal["rocketmq", "parquet", "postgresql", "delta", "jdbc", "foreach_batch"]


def _is_trigger(text: str) -> bool:
    if text in ("", AVAILABLE_NOW):
        return True
    try:
        return parse_duration_ms(text) > 0
    except ValueError:
        return False


class SparkConfig(ConfigSection):
    """How a group runs on `engine: spark`."""

    master: Annotated[str, Text()] = setting(
        "local[*,4]", "Spark master URL; local[N,4] runs N tasks at once, each with four attempts as on a cluster"
    )
    conf: dict[str, Any] = Field(default_factory=dict, description="Spark properties")
    checkpoint: Annotated[str, Text()] = setting(
        "", "folder or URL of the checkpoint; empty: spark/<group> in state_dir"
    )
    trigger: Annotated[str, Text("a duration, available_now, or nothing", _is_trigger)] = setting(
        "",
        "when a micro-batch starts: a duration, or empty: when the previous one ends; "
        "available_now: handle all stored messages, and end",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="options of the source rocketmq, such as minPartitions; docs/spark.md"
    )
    max_offsets_per_trigger: Annotated[int, Integer(0)] = setting(0, "maximum messages per micro-batch; 0: no limit")


class PipelineConfig(ConfigSection):
    """The function of DataFrames that a group runs instead of a handler."""

    plugin: Annotated[str, Text("a name of the entry-point group rmqd.pipelines, or module:attribute")] = Field(
        description="a name in the entry-point group rmqd.pipelines, or module:attribute"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="passed to the pipeline; validated by its Options model, if it has one"
    )


class SinkConfig(ConfigSection):
    """The destination of a pipeline's rows."""

    format: Annotated[SinkFormat, Choice(get_args(SinkFormat))] = Field(
        description="rocketmq: a topic; parquet or delta: a folder; postgresql or jdbc: a table; "
        "foreach_batch: a function"
    )
    topic: Annotated[str, Text()] = setting("", "format rocketmq: the topic; empty: the column topic of each row")
    path: Annotated[str, Text()] = setting("", "format parquet or delta: the folder or URL")
    partition_by: list[Annotated[str, Text()]] = Field(
        default_factory=list, description="format parquet or delta: columns that become folders"
    )
    plugin: Annotated[str, Text()] = setting(
        "", "format foreach_batch: module:attribute of (frame, batch_id) or (frame, batch_id, options)"
    )
    staging: Annotated[str, Text()] = setting(
        "", "format parquet: where batches are written first, on the file system of path; empty: .NAME.rmqd next to it"
    )
    url: Annotated[str, Text()] = setting("", "format postgresql: the database, such as postgresql://db.example/shop")
    table: Annotated[str, Text()] = setting("", "format postgresql: an existing table, as written in SQL")
    keys: list[Annotated[str, Text()]] = Field(
        default_factory=list,
        description="format postgresql or delta: unique columns; a row replaces the row with its key; empty: no key",
    )
    order_by: list[Annotated[str, Text()]] = Field(
        default_factory=list,
        description="format postgresql or delta: columns that determine the last of several rows with one key",
    )
    delete_column: Annotated[str, Text()] = setting(
        "",
        "format postgresql: a boolean column of the rows, not of the table: true deletes the row with the key; "
        "needs keys and order_by",
    )
    bad_rows: Annotated[BadRows, Choice(get_args(BadRows))] = setting(
        "fail",
        "rows that the sink refuses: fail ends the query with the first one's topic, queue and offset; leave_out "
        "(postgresql, rocketmq) continues without them",
    )
    batch_column: Annotated[str, Text()] = setting(
        "", "format jdbc: a text column with the batch of each row, so that a repeated batch replaces its rows"
    )
    output_mode: Annotated[OutputMode, Choice(get_args(OutputMode))] = setting(
        "append", "which rows of an aggregate are written with each micro-batch"
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="options of the format: Spark's, such as url for jdbc; libpq's for postgresql; the function's",
    )
