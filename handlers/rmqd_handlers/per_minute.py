"""`per_minute`: counts the messages of each tag per minute, including late ones, and sends the counts as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from .units import parse_duration_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


TIME = "counted_at"


def _above_zero(text: str) -> str:
    if parse_duration_seconds(text) <= 0:
        raise ValueError(f"{text!r} is not above zero; expected a duration such as 30s or 1m")
    return text


def _duration(text: str) -> str:
    parse_duration_seconds(text)
    return text


class Options(BaseModel):
    """The options of the count."""

    model_config = ConfigDict(extra="forbid")

    window: Annotated[str, AfterValidator(_above_zero)] = Field("1m", description="a duration: the length of a window")
    lateness: Annotated[str, AfterValidator(_duration)] = Field(
        "10m", description="a duration: how much older than the latest message a counted message may be"
    )
    time_of: Literal["born_timestamp", "store_timestamp"] = Field(
        "born_timestamp",
        description="the time at which a message is counted: when its producer created it, at the latest when it was "
        "stored; or when the broker stored it",
    )
    sum: str | None = Field(None, description="the path of a number in JSON bodies to sum: $.amount", pattern=r"^\$")


def per_minute(frame: DataFrame, spark: SparkSession, options: Options) -> DataFrame:
    """Return counts per window, topic and tag as JSON messages. A window is sent when the watermark has passed it."""
    from pyspark.sql import functions as f

    counts = [f.count(f.lit(1)).alias("messages")]
    if options.sum is not None:
        number = f.get_json_object(f.col("body").cast("string"), options.sum).try_cast("double")
        counts.append(f.sum(number).alias("sum"))
    # A message cannot be younger than its store time. The watermark follows the latest time: otherwise one producer
    # with a clock a day ahead would make all other messages late for a day.
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
        # the same for the same window, even if it is sent again: readers can drop the duplicate
        f.concat_ws("/", "topic", "tag", "start").alias("keys"),
        f.concat_ws("/", "topic", "tag").alias("sharding_key"),
    )


def _interval(duration: str) -> str:
    """Return a duration in Spark's notation."""
    return f"{round(parse_duration_seconds(duration) * 1_000_000)} microseconds"
