"""The pipelines `archive` (all messages as rows), `select` (SQL columns of messages) and `per_minute` (counts)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import AfterValidator, Field

from rmqd.handler_api.destinations.upsert_sql import PLACE_COLUMN, PLACE_COLUMNS
from rmqd_handlers.option_kinds import HandlerOptions, option, parse_duration_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


DATE = "date"
PARTITIONS = (DATE, "topic")


def _offset(text: str) -> str:
    match = re.fullmatch(r"[+-]([0-9]{2}):([0-9]{2})", text)
    if match is None or int(match[1]) > 14 or int(match[2]) > 59:
        raise ValueError(f"{text!r} is not an offset from UTC; expected +00:00 or +08:00, for example")
    return text


class ArchiveOptions(HandlerOptions):
    """The options of the pipeline `archive`."""

    columns: list[str] | None = option(
        None, "the source's columns to keep besides date and topic; default: all", min_length=1
    )
    date_of: Literal["store_timestamp", "born_timestamp"] = option(
        "store_timestamp",
        "the time that determines the date: when the broker stored the message, or its producer created it",
    )
    utc_offset: Annotated[str, AfterValidator(_offset)] = option(
        "+00:00", "the time zone of the date, as an offset from UTC such as +08:00"
    )
    body: Literal["binary", "text"] = option("binary", "text reads bodies as UTF-8, with U+FFFD for invalid bytes")
    files: int = option(
        1, "files per date and topic in each micro-batch; 0: one per task, without a shuffle", ge=0, le=1000
    )

    @property
    def offset_seconds(self) -> int:
        hours, minutes = int(self.utc_offset[1:3]), int(self.utc_offset[4:])
        return (hours * 3600 + minutes * 60) * (-1 if self.utc_offset[0] == "-" else 1)


def archive(frame: DataFrame, spark: SparkSession, options: ArchiveOptions) -> DataFrame:
    """Return every message as a row with its date, for a sink that is partitioned by date and topic."""
    from pyspark.sql import functions as f

    # calculated with numbers, because Spark's date functions use the session's time zone
    day = f.floor((f.unix_seconds(options.date_of) + f.lit(options.offset_seconds)) / f.lit(86400)).cast("int")
    rows = frame.withColumn(DATE, f.date_from_unix_date(day))
    if options.body == "text" and "body" in frame.columns:
        rows = rows.withColumn("body", f.make_valid_utf8(f.col("body").cast("string")))
    if options.files:
        # rows of one date and topic are distributed to `files` tasks, and each task writes one file with these rows
        tasks = max(spark.sparkContext.defaultParallelism, options.files)
        place = f.pmod(f.hash(DATE, "topic"), f.lit(tasks)) + f.pmod("queue_offset", f.lit(options.files))
        rows = rows.repartitionById(tasks, place.cast("int"))
    names = frame.columns if options.columns is None else options.columns
    return rows.select(*(name for name in names if name not in PARTITIONS), *PARTITIONS)


BAD: Final = "_bad_row"


class SelectOptions(HandlerOptions):
    """The options of the pipeline `select`."""

    columns: list[str] = Field(
        description="SQL over the source's columns: `value.id`, `queue_offset`, `upper(tags) AS kind`", min_length=1
    )
    where: str = option("", "an SQL condition, such as `_bad_row IS NULL`; empty: all messages")
    bad_rows: Literal["", "fail", "leave_out", "only"] = option(
        "",
        "for messages whose body does not fit the source's schema: fail at the first one; skip them; "
        "return only them; empty: decided by `where`",
    )


def select(frame: DataFrame, spark: SparkSession, options: SelectOptions) -> DataFrame:
    """Return SQL columns of the messages that match a condition."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    rows, place = frame, [name for name in PLACE_COLUMNS if name in frame.columns]
    if options.bad_rows in ("leave_out", "only"):
        rows = rows.where(f"{BAD} IS {'NOT ' if options.bad_rows == 'only' else ''}NULL")
    elif options.bad_rows:
        told = [f.lit("a body does not fit: "), BAD, *(part for name in place for part in (f.lit(f", {name} "), name))]
        rows = rows.where(f.when(f.isnull(BAD), True).otherwise(f.raise_error(f.concat(*told)).cast("boolean")))
    rows = rows.where(options.where) if options.where else rows  # last, because it may silently exclude bad rows
    try:
        return rows.selectExpr(*options.columns, f"struct({', '.join(place)}) AS {PLACE_COLUMN}")
    except AnalysisException:  # for example for an aggregate, whose rows are not messages
        return rows.selectExpr(*options.columns)


TIME = "counted_at"


def _above_zero(text: str) -> str:
    if parse_duration_seconds(text) <= 0:
        raise ValueError(f"{text!r} is not above zero; expected a duration such as 30s or 1m")
    return text


def _duration(text: str) -> str:
    parse_duration_seconds(text)
    return text


class PerMinuteOptions(HandlerOptions):
    """The options of the pipeline `per_minute`."""

    window: Annotated[str, AfterValidator(_above_zero)] = option("1m", "a duration: the length of a window")
    lateness: Annotated[str, AfterValidator(_duration)] = option(
        "10m", "a duration: how much older than the latest message a counted message may be"
    )
    time_of: Literal["born_timestamp", "store_timestamp"] = option(
        "born_timestamp",
        "the time at which a message is counted: when its producer created it, at the latest when it was "
        "stored; or when the broker stored it",
    )
    sum: str | None = option(None, "the path of a number in JSON bodies to sum: $.amount", pattern=r"^\$")


def per_minute(frame: DataFrame, spark: SparkSession, options: PerMinuteOptions) -> DataFrame:
    """Return counts per window, topic and tag as JSON messages. A window is sent when the watermark has passed it."""
    from pyspark.sql import functions as f

    counts = [f.count(f.lit(1)).alias("messages")]
    if options.sum is not None:
        number = f.get_json_object(f.col("body").cast("string"), options.sum).try_cast("double")
        counts.append(f.sum(number).alias("sum"))
    # A message cannot be younger than its store time. The watermark follows the latest time, so without this limit one
    # producer with a clock a day ahead would make all other messages late.
    by_producer = options.time_of == "born_timestamp"
    time = f.least("born_timestamp", "store_timestamp") if by_producer else f.col("store_timestamp")
    windows = (
        frame.withColumn("tag", f.coalesce("tags", f.lit("")))
        .withColumn(TIME, time)
        .withWatermark(TIME, _interval(options.lateness))
        .groupBy(f.window(TIME, _interval(options.window)), "topic", "tag")
        .agg(*counts)
        .withColumn("start", f.date_format(f.col("window.start"), "yyyy-MM-dd'T'HH:mm:ssXXX"))
        .withColumn("end", f.date_format(f.col("window.end"), "yyyy-MM-dd'T'HH:mm:ssXXX"))
    )
    values = ["topic", "tag", "start", "end", "messages", *(["sum"] if options.sum is not None else [])]
    return windows.select(
        f.to_json(f.struct(*values)).alias("body"),
        f.col("tag").alias("tags"),
        # the keys are the same if a window is sent again, so that readers can drop the duplicate
        f.concat_ws("/", "topic", "tag", "start").alias("keys"),
        f.concat_ws("/", "topic", "tag").alias("sharding_key"),
    )


def _interval(duration: str) -> str:
    return f"{round(parse_duration_seconds(duration) * 1_000_000)} microseconds"
