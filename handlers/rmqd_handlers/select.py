"""`select`: columns by SQL, of the messages that a condition takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Options(BaseModel):
    """Which rows there are, and what they have."""

    model_config = ConfigDict(extra="forbid")

    columns: list[str] = Field(
        description="SQL over the source's columns: `value.id`, `queue_offset`, `upper(tags) AS kind`", min_length=1
    )
    where: str = Field("", description="an SQL condition, such as `_bad_row IS NULL`; empty: all messages")


def select(frame: DataFrame, spark: SparkSession, options: Options) -> DataFrame:
    """Columns by SQL, of the messages that a condition takes."""
    rows = frame.where(options.where) if options.where else frame
    return rows.selectExpr(*options.columns)
