"""`select`: SQL columns of the messages that match a condition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


BAD: Final = "_bad_row"
PLACE: Final = "_place"
"""The column with which a sink names the message of a refused row. Sinks do not store it."""
PLACE_COLUMNS: Final = ("topic", "broker", "queue_id", "queue_offset")


class Options(BaseModel):
    """The rows and their columns."""

    model_config = ConfigDict(extra="forbid")

    columns: list[str] = Field(
        description="SQL over the source's columns: `value.id`, `queue_offset`, `upper(tags) AS kind`", min_length=1
    )
    where: str = Field("", description="an SQL condition, such as `_bad_row IS NULL`; empty: all messages")
    bad_rows: Literal["", "fail", "leave_out", "only"] = Field(
        "",
        description="for messages whose body does not fit the source's schema: fail at the first one; skip them; "
        "return only them; empty: decided by `where`",
    )


def select(frame: DataFrame, spark: SparkSession, options: Options) -> DataFrame:
    """Return SQL columns of the messages that match a condition."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    rows, place = frame, [name for name in PLACE_COLUMNS if name in frame.columns]
    if options.bad_rows in ("leave_out", "only"):
        rows = rows.where(f"{BAD} IS {'NOT ' if options.bad_rows == 'only' else ''}NULL")
    elif options.bad_rows:
        told = [f.lit("a body does not fit: "), BAD, *(part for name in place for part in (f.lit(f", {name} "), name))]
        rows = rows.where(f.when(f.isnull(BAD), True).otherwise(f.raise_error(f.concat(*told)).cast("boolean")))
    rows = rows.where(options.where) if options.where else rows  # it would silently exclude bad rows
    try:
        return rows.selectExpr(*options.columns, f"struct({', '.join(place)}) AS {PLACE}")
    except AnalysisException:  # for example for an aggregate, whose rows are not messages
        return rows.selectExpr(*options.columns)
