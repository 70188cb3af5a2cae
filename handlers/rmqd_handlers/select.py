"""`select`: columns by SQL, of the messages that a condition takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


BAD: Final = "_bad_row"
PLACE: Final = "_place"
"""The column by which a sink names the message of a row that it refuses; no sink stores it."""
PLACE_COLUMNS: Final = ("topic", "broker", "queue_id", "queue_offset")


class Options(BaseModel):
    """Which rows there are, and what they have."""

    model_config = ConfigDict(extra="forbid")

    columns: list[str] = Field(
        description="SQL over the source's columns: `value.id`, `queue_offset`, `upper(tags) AS kind`", min_length=1
    )
    where: str = Field("", description="an SQL condition, such as `_bad_row IS NULL`; empty: all messages")
    bad_rows: Literal["", "fail", "leave_out", "only"] = Field(
        "",
        description="of messages whose body does not fit the source's schema: the query ends with the first one; they "
        "are left out; they alone are rows; empty: as `where` says",
    )


def select(frame: DataFrame, spark: SparkSession, options: Options) -> DataFrame:
    """Columns by SQL, of the messages that a condition takes."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    rows, place = frame, [name for name in PLACE_COLUMNS if name in frame.columns]
    if options.bad_rows in ("leave_out", "only"):
        rows = rows.where(f"{BAD} IS {'NOT ' if options.bad_rows == 'only' else ''}NULL")
    elif options.bad_rows:
        told = [f.lit("a body does not fit: "), BAD, *(part for name in place for part in (f.lit(f", {name} "), name))]
        rows = rows.where(f.when(f.isnull(BAD), True).otherwise(f.raise_error(f.concat(*told)).cast("boolean")))
    rows = rows.where(options.where) if options.where else rows  # which would leave out bad rows without a word
    try:
        return rows.selectExpr(*options.columns, f"struct({', '.join(place)}) AS {PLACE}")
    except AnalysisException:  # as of an aggregate, whose rows are no messages
        return rows.selectExpr(*options.columns)
