"""`archive`: every message as a row with its date, for a file sink with folders by date and topic."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATE = "date"
PARTITIONS = (DATE, "topic")


def _offset(text: str) -> str:
    match = re.fullmatch(r"[+-]([0-9]{2}):([0-9]{2})", text)
    if match is None or int(match[1]) > 14 or int(match[2]) > 59:
        raise ValueError(f"{text!r} is not an offset from UTC; expected +00:00 or +08:00, for example")
    return text


class Options(BaseModel):
    """The content of the rows."""

    model_config = ConfigDict(extra="forbid")

    columns: list[str] | None = Field(
        None, description="the source's columns to keep besides date and topic; default: all", min_length=1
    )
    date_of: Literal["store_timestamp", "born_timestamp"] = Field(
        "store_timestamp",
        description="the time that determines the date: when the broker stored the message, or its producer created it",
    )
    utc_offset: Annotated[str, AfterValidator(_offset)] = Field(
        "+00:00", description="the time zone of the date, as an offset from UTC such as +08:00"
    )
    body: Literal["binary", "text"] = Field(
        "binary", description="text reads bodies as UTF-8, with U+FFFD for invalid bytes"
    )
    files: Annotated[int, Field(ge=0, le=1000)] = Field(
        1, description="files per date and topic in each micro-batch; 0: one per task, without a shuffle"
    )

    @property
    def offset_seconds(self) -> int:
        """The seconds to add to UTC."""
        hours, minutes = int(self.utc_offset[1:3]), int(self.utc_offset[4:])
        return (hours * 3600 + minutes * 60) * (-1 if self.utc_offset[0] == "-" else 1)


def archive(frame: DataFrame, spark: SparkSession, options: Options) -> DataFrame:
    """Return every message as a row with its date, for a sink that is partitioned by date and topic."""
    from pyspark.sql import functions as f

    # only with numbers, because Spark's date functions use the session's time zone
    day = f.floor((f.unix_seconds(options.date_of) + f.lit(options.offset_seconds)) / f.lit(86400)).cast("int")
    rows = frame.withColumn(DATE, f.date_from_unix_date(day))
    if options.body == "text" and "body" in frame.columns:
        rows = rows.withColumn("body", f.make_valid_utf8(f.col("body").cast("string")))
    if options.files:
        # rows of one date and topic are distributed to this number of tasks, and each task writes one file of them
        tasks = max(spark.sparkContext.defaultParallelism, options.files)
        place = f.pmod(f.hash(DATE, "topic"), f.lit(tasks)) + f.pmod("queue_offset", f.lit(options.files))
        rows = rows.repartitionById(tasks, place.cast("int"))
    names = frame.columns if options.columns is None else options.columns
    return rows.select(*(name for name in names if name not in PARTITIONS), *PARTITIONS)
