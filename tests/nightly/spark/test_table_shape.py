"""Whether rows fit a table of PostgreSQL; without a database."""

from __future__ import annotations

import pytest

from tests.spark.needed import need

need("pyspark")

from pyspark.sql.types import (  # noqa: E402
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from rmqd.spark.pipelines.postgresql.table_shape import TableColumn, TableShape  # noqa: E402

LONG, LONGS = LongType(), ArrayType(LongType())


def problems(kind: DataType, column: str) -> list[str]:
    """Return the problems of rows ordered by `place`, with these types in the pipeline and in the table."""
    columns = {"id": TableColumn("bigint", False, True), "place": TableColumn(column, False, False)}
    shape = TableShape("public", "prices", columns, (frozenset({"id"}),))
    return list(
        shape.problems_with(StructType([StructField("id", LONG), StructField("place", kind)]), ["id"], ["place"])
    )


@pytest.mark.parametrize(
    ("kind", "column", "problem"),
    [
        (LONG, "text", "bigint in the pipeline and text in the table, where 10 is before 9; expected bigint"),
        (DecimalType(5, 2), "character varying", "decimal(5,2) in the pipeline and character varying in the table"),
        (LONGS, "text[]", "array<bigint> in the pipeline and text[] in the table, where 10 is before 9"),
        (LONGS, "json", "json in the table, which has no order; expected bigint[] in the table"),
    ],
)
def test_a_column_with_another_order_than_the_pipeline_is_refused(kind: DataType, column: str, problem: str) -> None:
    """An older row would replace a later one, or each batch would fail."""
    (found,) = problems(kind, column)
    assert found.startswith(f"order_by: place is {problem}")


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (LONG, "numeric"),
        (LONGS, "bigint[]"),
        (LONGS, "jsonb"),
        (StringType(), "text"),
        (ArrayType(StringType()), "text[]"),
        (DateType(), "text"),
    ],
)
def test_a_column_with_the_same_order_as_the_pipeline_is_accepted(kind: DataType, column: str) -> None:
    assert not problems(kind, column)


@pytest.mark.parametrize(("keys", "other"), [(["state"], "state"), (["id", "state"], "id, state"), ([], "nothing")])
def test_keys_that_differ_from_the_pipelines_keys_are_refused(keys: list[str], other: str) -> None:
    """The sink would replace and delete other rows than the pipeline means."""
    columns = {name: TableColumn("bigint", False, True) for name in ("id", "state")}
    shape = TableShape("public", "prices", columns, (frozenset({"id"}), frozenset(keys)))
    told = StructField("state", LONG, metadata={"rmqd.keys": ["id"]})
    rows = StructType([StructField("id", LONG), told])
    (found,) = shape.problems_with(rows, keys, [])
    assert found == f"keys: the pipeline identifies a row by id, and the sink by {other}; expected the same in both"
    assert not list(shape.problems_with(rows, ["id"], []))
