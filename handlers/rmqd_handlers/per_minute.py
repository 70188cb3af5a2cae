"""`per_minute`: how many messages of each tag there were in each minute, late ones too, as messages of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from .units import parse_duration_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


TIME = "counted_at"


def _above_zero(text: str) -> str:
    if parse_duration_seconds(text) <= 0:
        raise ValueError(f"{text!r} is no time at all; accepted: a duration such as 30s or 1m")
    return text


def _duration(text: str) -> str:
    parse_duration_seconds(text)
    return text


class Options(BaseModel):
    """What is counted, and when a window is complete."""

    model_config = ConfigDict(extra="forbid")

    window: Annotated[str, AfterValidator(_above_zero)] = Field("1m", description="a duration: how long a window is")
    lateness: Annotated[str, AfterValidator(_duration)] = Field(
        "10m", description="a duration: how far behind the youngest message one may be and still be counted"
    )
    time_of: Literal["born_timestamp", "store_timestamp"] = Field(
        "born_timestamp",
        description="the time that a message counts for: when its producer made it, which is not later than it was "
        "stored; or when the broker stored it",
    )
    sum: str | None = Field(
        None, description="a number in bodies that are JSON, to be added up, by its path: $.amount", pattern=r"^\$"
    )


def per_minute(frame: DataFrame, spark: SparkSession, options: Options) -> DataFrame:
    """Messages per window, topic and tag, as messages in JSON; a window's is sent once the watermark has passed it."""
    from pyspark.sql import functions as f

    counts = [f.count(f.lit(1)).alias("messages")]
    if options.sum is not None:
        number = f.get_json_object(f.col("body").cast("string"), options.sum).try_cast("double")
        counts.append(f.sum(number).alias("sum"))
    # A message is not younger than its being stored. The watermark follows the youngest one: a single producer whose
    # clock is a day ahead would otherwise have all others' messages count as late for a day.
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
        # the same for the same window, however often it is sent: readers can drop the second one
        f.concat_ws("/", "topic", "tag", "start").alias("keys"),
        f.concat_ws("/", "topic", "tag").alias("sharding_key"),
    )


def _interval(duration: str) -> str:
    """A duration as Spark writes it."""
    return f"{round(parse_duration_seconds(duration) * 1_000_000)} microseconds"
