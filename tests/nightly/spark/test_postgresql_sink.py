"""The sink `postgresql`, over a real PostgreSQL: each batch is written once, however often drivers try it."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqd.errors import ConfigError, RmqdError
from tests.spark.needed import need

need("pyspark", "pyarrow", "psycopg")

import pyarrow as pa  # type: ignore[import-untyped]  # noqa: E402
from pyspark.sql.types import ArrayType, DecimalType  # noqa: E402

from rmqd.spark.engine.running_query import query_error  # noqa: E402
from rmqd.spark.pipelines.postgresql.postgresql_sink import PostgresqlSink  # noqa: E402
from rmqd.spark.pipelines.postgresql.table_shape import open_connection  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from tests.servers.postgresql import PostgresqlServer  # noqa: E402
from tests.spark.embedded_broker import EmbeddedBroker  # noqa: E402
from tests.spark.group_queries import SECONDS, order_of, start  # noqa: E402
from tests.spark.test_postgresql_sink import (  # noqa: E402
    TABLE,
    UNKEYED,
    Database,
    Tasks,
    batch,
    columns,
    of_messages,
    rows,
    see_refused,
)


@pytest.fixture
def prices_database(postgresql: PostgresqlServer, database: str) -> Database:
    return Database(postgresql, database)


def test_several_rows_with_the_same_key_need_order_by(spark: SparkSession, prices_database: Database) -> None:
    """None of the batch's rows is written. With one row for each key, the later batch counts."""
    prices_database.run(TABLE)
    frame = rows(spark, (1, 10, 5), (1, 11, 6))
    sink = prices_database.sink(frame.schema, keys=["id"])
    with pytest.raises(RmqdError, match=r"batch 0 has several rows with the same key \(id\).*set sink.order_by"):
        sink.write(frame, batch(0))
    assert prices_database.run("SELECT * FROM prices") == []
    sink.write(rows(spark, (1, 10, 5)), batch(0))
    sink.write(rows(spark, (1, 7, 4)), batch(1))
    assert prices_database.run("SELECT * FROM prices") == [(1, 7, 4)]


def test_a_driver_that_was_replaced_writes_nothing(spark: SparkSession, prices_database: Database) -> None:
    """It is replaced before it copies its rows, or between the copy and its transaction."""
    prices_database.run(UNKEYED)
    frame = rows(spark, (1, 10, 5))
    former = prices_database.sink(frame.schema)
    prices_database.sink(frame.schema)
    with pytest.raises(RmqdError, match="another driver of prices-group has started to write to prices"):
        former.write(frame, batch(0))
    asleep = prices_database.sink(frame.schema)
    taking_over: list[PostgresqlSink] = []

    class Sleeper:
        """A frame whose tasks have copied everything when the next driver starts."""

        def mapInArrow(self, *arguments: Any) -> Any:
            told = frame.mapInArrow(*arguments).collect()
            taking_over.append(prices_database.sink(frame.schema))
            return Told(told)

    class Told:
        def __init__(self, rows: list[Any]) -> None:
            self._rows = rows

        def collect(self) -> list[Any]:
            return self._rows

    with pytest.raises(RmqdError, match="another driver of prices-group has started to write to prices"):
        asleep.write(Sleeper(), batch(0))  # type: ignore[arg-type]  # the sink uses only this method of a frame
    assert prices_database.run("SELECT * FROM prices") == []
    taking_over[0].write(frame, batch(0))
    assert len(prices_database.run("SELECT * FROM prices")) == 1
    stagings = prices_database.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'rmqd_staged%'")
    assert len(stagings) == 1  # the others are dropped


def test_a_retried_task_writes_its_rows_once(spark: SparkSession, prices_database: Database) -> None:
    """Its first attempt had copied them all."""
    prices_database.run(UNKEYED)
    frame = rows(spark, (1, 10, 5), (2, 20, 6))
    sink = prices_database.sink(frame.schema)

    def twice(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise ValueError("lost after the copy")

    class Retried:
        def mapInArrow(self, copy: Any, told: str) -> Any:
            return frame.mapInArrow(copy, told).mapInArrow(twice, told)

    sink.write(Retried(), batch(0))  # type: ignore[arg-type]  # the sink uses only this method of a frame
    assert sorted(prices_database.run("SELECT id FROM prices")) == [(1,), (2,)]


def test_values_are_stored_unchanged(spark: SparkSession, prices_database: Database) -> None:
    """This covers all types that both sides know.

    Structured values become arrays and JSON. The schema is not the default.
    """
    prices_database.run("CREATE SCHEMA shop")
    prices_database.run(
        'CREATE TABLE shop."All Kinds" (i int, d double precision, t text, b bytea, n numeric(10, 2), flag boolean, '
        'day date, at timestamptz, tags text[], lines jsonb, props jsonb, "as text" jsonb, u uuid, made serial, '
        "twice int GENERATED ALWAYS AS (i * 2) STORED)"
    )
    frame = spark.sql(
        "SELECT 1 AS i, 2.5D AS d, 'tab\\t, \\\\ and \\nline' AS t, X'00FF' AS b, CAST(1.25 AS DECIMAL(10,2)) AS n, "
        "true AS flag, DATE'2026-03-01' AS day, TIMESTAMP'2026-03-01 10:00:00.5Z' AS at, "
        "array('a', null, 'b,c') AS tags, '{\"a\": [1]}' AS `as text`, "
        "array(named_struct('sku', 'x', 'price', 1.5D)) AS lines, map('k', 'v') AS props, "
        "'123e4567-e89b-12d3-a456-426614174000' AS u"
    )
    sink = prices_database.sink(frame.schema, table='shop."All Kinds"')
    sink.write(frame, batch(0))
    sink.write(frame.selectExpr(*(f"CAST(NULL AS {kind}) AS `{name}`" for name, kind in frame.dtypes)), batch(1))
    found = prices_database.run('SELECT * FROM shop."All Kinds" ORDER BY i')
    assert [str(value) if name == 12 else value for name, value in enumerate(found[0])] == [
        1, 2.5, "tab\t, \\ and \nline", b"\x00\xff", pytest.approx(1.25), True,
        datetime(2026, 3, 1, tzinfo=UTC).date(), datetime(2026, 3, 1, 10, 0, 0, 500000, tzinfo=UTC), ["a", None, "b,c"],
        [{"sku": "x", "price": 1.5}], {"k": "v"}, {"a": [1]}, "123e4567-e89b-12d3-a456-426614174000", 1, 2,
    ]  # fmt: skip
    assert set(found[1][:13]) == {None}


REFUSED = {
    "no table": ("", {}, r"there is no table prices; create it, .* CREATE TABLE prices \(\"id\" bigint, \"amount\" "),
    "no column": ("CREATE TABLE prices (id bigint, amount int)", {}, "column place: unknown column; expected one of"),
    "no value": (f"{UNKEYED[:-1]}, more int NOT NULL)", {}, "column more: the table requires a value"),
    "no index": (UNKEYED, {"keys": ["id"]}, r"keys: the table has no unique index on exactly id; run CREATE"),
    "other index": (TABLE, {"keys": ["id", "place"]}, "keys: the table has no unique index on exactly id, place"),
    "no key": (TABLE, {"keys": ["no"]}, "keys: unknown column no; expected one of id, amount, place"),
    "computed": ("CREATE TABLE prices (id bigint GENERATED ALWAYS AS IDENTITY, amount int, place bigint)", {},
                 "column id: the database computes it"),
}  # fmt: skip


@pytest.mark.parametrize(("table", "keys", "message"), REFUSED.values(), ids=REFUSED)
def test_a_table_or_keys_that_do_not_fit_are_refused_before_anything_is_read(
    spark: SparkSession, prices_database: Database, table: str, keys: dict[str, Any], message: str
) -> None:
    if table:
        prices_database.run(table)
    with pytest.raises((RmqdError, ConfigError), match=message):
        prices_database.sink(rows(spark).schema, **keys)


@pytest.mark.parametrize(
    ("rows", "column", "message"),
    [
        (
            "CAST('x' AS BINARY)",
            "text",
            r"is binary in the pipeline and text in the table; use CAST\(v AS STRING",
        ),
        ("named_struct('a', 1)", "text", "is struct in the pipeline and text in the table; expected jsonb"),
        ("array(1)", "int", "is array in the pipeline and integer in the table; expected an array or jsonb"),
    ],
)
def test_a_column_of_another_type_is_refused(
    spark: SparkSession, prices_database: Database, rows: str, column: str, message: str
) -> None:
    prices_database.run(f"CREATE TABLE prices (v {column})")
    with pytest.raises(ConfigError, match=message):
        prices_database.sink(spark.sql(f"SELECT {rows} AS v").schema)


def test_database_errors_are_reported_without_the_value(spark: SparkSession, prices_database: Database) -> None:
    """Tasks, Spark's texts and the transaction are covered. A wrong address hides only its password."""
    prices_database.run("CREATE TABLE prices (id uuid)")
    frame = spark.sql("SELECT 'secret' AS id")
    sink = prices_database.sink(frame.schema)
    with pytest.raises(
        Exception, match=r"sink prices: invalid input syntax for type uuid: \.\.\. \(22P02\), column id"
    ) as task:
        sink.write(frame, batch(0))
    assert "secret" not in "".join(traceback.format_exception(task.value))
    prices_database.run("DROP TABLE prices")
    prices_database.run("CREATE TABLE prices (id text UNIQUE CONSTRAINT short CHECK (length(id) < 3))")
    with pytest.raises(
        RmqdError,
        match=r'relation "prices" violates check constraint "short" \(23514\), table prices, constraint short',
    ) as moved:
        prices_database.sink(frame.schema).write(frame, batch(0))
    assert "secret" not in "".join(traceback.format_exception(moved.value))
    with pytest.raises(RmqdError, match=r"sink prices: connection .*failed") as raised:
        prices_database.sink(frame.schema, url="postgresql://me:hidden@127.0.0.1:1/x")
    assert "hidden" not in str(raised.value)


PARSED = {
    "tsquery": ("'card 4111'", "q tsquery", r"syntax error in tsquery: \.\.\. \(42601\), column q"),
    "a name": ("'card4111'", "q regtype", r"type \.\.\. \(42704\), column q"),
    "tsquery of a function": (
        "'card 4111'",
        "q text, made tsquery GENERATED ALWAYS AS (to_tsquery('simple', q)) STORED",
        r"syntax error in tsquery: \.\.\. \(42601\)",
    ),
}


@pytest.mark.parametrize(("value", "columns", "message"), PARSED.values(), ids=PARSED)
def test_a_value_that_the_database_parses_is_not_reported(
    spark: SparkSession, prices_database: Database, value: str, columns: str, message: str
) -> None:
    """These errors have the class of SQL errors, whose other texts have only names."""
    prices_database.run(f"CREATE TABLE prices ({columns})")
    frame = spark.sql(f"SELECT {value} AS q")
    with pytest.raises(Exception, match=rf"sink prices: {message}") as refused:
        prices_database.sink(frame.schema).write(frame, batch(0))
    assert "4111" not in "".join(traceback.format_exception(refused.value))


REFUSED_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "text with a NUL": ({"note": "a\0b"}, "NUL"),
    "constraint": ({"amount": -1}, "prices_amount_check"),
    "deferred constraint": ({"shop": 2}, "prices_shop_fkey"),
    "no number": ({"size": "large"}, "invalid input syntax for type numeric"),
}


@pytest.mark.process
@pytest.mark.parametrize(("changed", "reason"), REFUSED_ROWS.values(), ids=REFUSED_ROWS)
def test_a_refused_row_is_named_or_left_out(prices_database: Database, changed: dict[str, Any], reason: str) -> None:
    see_refused(prices_database, changed, reason)


@pytest.mark.process
def test_views_and_triggers_refuse_rows_and_a_full_sequence_fails_the_batch(
    prices_database: Database,
) -> None:
    prices_database.run("CREATE SEQUENCE ids MINVALUE 0 START 1 MAXVALUE 1")
    prices_database.run("CREATE TABLE rows (amount int, id int DEFAULT nextval('ids'))")
    prices_database.run("CREATE VIEW prices AS SELECT * FROM rows WHERE amount > 0 WITH CHECK OPTION")
    prices_database.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ASSERT NEW.amount <> 7; "
        "IF NEW.amount = 8 THEN RAISE EXCEPTION 'no' USING ERRCODE = 'MY001'; END IF; RETURN NEW; END $$"
    )
    prices_database.run("CREATE TRIGGER refuse BEFORE INSERT ON rows FOR EACH ROW EXECUTE FUNCTION refuse()")
    frame: Any = Tasks(of_messages([{"amount": amount} for amount in (1, 0, 7, 8)], 3))
    sink = prices_database.sink(columns(amount="integer"), bad_rows="leave_out")
    with pytest.raises(RmqdError, match=r"sequence.*\(2200H\)$"):
        sink.write(frame, batch(0))
    prices_database.run("ALTER SEQUENCE ids MAXVALUE 1000")
    sink.write(frame, batch(0))
    refused = prices_database.run("SELECT queue_offset, reason FROM rmqd_refused_prices ORDER BY 1")
    assert [(offset, reason[-6:-1]) for offset, reason in refused] == [(1, "44000"), (2, "P0004"), (3, "MY001")]


@pytest.mark.process
def test_a_row_without_a_key_is_refused_even_if_the_index_accepts_it(prices_database: Database) -> None:
    """Each such row would be a new one, and only the last one of a batch would be written."""
    prices_database.run("CREATE TABLE prices (id numeric(12,2) UNIQUE, place bigint)")
    with pytest.raises(ConfigError, match=r"keys: id is decimal\(12,3\) .*different keys would become one"):
        prices_database.sink(columns(id=DecimalType(12, 3), place="long"), keys=["id"])
    frame: Any = Tasks(of_messages([{"id": 7, "place": 1}, {"id": None, "place": 2}, {"id": None, "place": 3}], 3))
    keys = {"keys": ["id"], "order_by": ["place"], "bad_rows": "leave_out"}
    prices_database.sink(columns(id="integer", place="long"), **keys).write(frame, batch(0))
    assert prices_database.run("SELECT id::int, place FROM prices") == [(7, 1)]
    assert prices_database.run("SELECT queue_offset FROM rmqd_refused_prices ORDER BY 1") == [(1,), (2,)]


@pytest.mark.process
def test_only_a_text_outside_the_encoding_of_the_database_is_refused(postgresql: PostgresqlServer) -> None:
    database = Database(postgresql, postgresql.database("ENCODING LATIN1 TEMPLATE template0"))
    database.run("CREATE TABLE prices (note text)")
    frame: Any = Tasks(of_messages([{"note": "grün"}, {"note": "緑"}], 3))
    database.sink(columns(note="string"), bad_rows="leave_out").write(frame, batch(0))
    assert database.run("SELECT note FROM prices") == [("grün",)]
    assert database.run("SELECT queue_offset FROM rmqd_refused_prices") == [(1,)]


@pytest.mark.process
def test_decimals_in_json_are_numbers_with_all_digits(prices_database: Database) -> None:
    prices_database.run("CREATE TABLE prices (lines jsonb)")
    exact = Decimal("12345678901234567.890")
    frame: Any = Tasks([pa.RecordBatch.from_pylist([{"lines": [{"price": exact, "note": "ü"}, {"price": None}]}])])
    schema = columns(lines=ArrayType(columns(price=DecimalType(20, 3), note="string")))
    prices_database.sink(schema).write(frame, batch(0))
    told = "SELECT (lines -> 0 -> 'price')::numeric, lines -> 1, lines -> 0 -> 'note' FROM prices"
    assert prices_database.run(told) == [(exact, {"price": None, "note": None}, "ü")]


@pytest.mark.process
def test_bytes_in_json_are_base64(prices_database: Database) -> None:
    prices_database.run("CREATE TABLE prices (parts jsonb)")
    frame: Any = Tasks([pa.RecordBatch.from_pylist([{"parts": [{"raw": b"\xff\x00"}, {"raw": None}]}])])
    prices_database.sink(columns(parts=ArrayType(columns(raw="binary")))).write(frame, batch(0))
    assert prices_database.run("SELECT parts FROM prices") == [([{"raw": "/wA="}, {"raw": None}],)]


def test_a_group_continues_without_rows_that_decoding_or_the_table_refuse(
    spark: SparkSession, broker: EmbeddedBroker, prices_database: Database, tmp_path: Path
) -> None:
    """YAML configures it. Bad rows are bodies that do not fit, a null key and a NUL. The last of equal rows counts."""
    prices_database.run("CREATE TABLE prices (id bigint PRIMARY KEY, note text)")
    broker.create_topic("orders", 1)
    broker.create_topic("refunds", 1)
    bad = ["{}", '{"id": "x"}', json.dumps({"id": 1, "note": "a\0b"}), '{"id": 2, "note": "\\ud800"}']
    broker.send("orders", *bad, *(json.dumps({"id": n % 50, "note": str(n)}) for n in range(200)))
    group: dict[str, Any] = {
        "spark": {
            "trigger": "available_now",
            "options": {"value": "json", "valueSchema": "id bigint, note string"},
        },
        "pipeline": {"plugin": "select", "options": {"columns": ["value.*"], "bad_rows": "fail"}},
        "sink": {"format": "postgresql", "url": prices_database.url, "table": "prices", "keys": ["id"]},
    }
    group["sink"]["order_by"] = ["id"]
    for name in ("fail", "refused"):
        (tmp_path / name).mkdir()
    failing = start(spark, order_of(broker.nameserver, **group), tmp_path / "fail")
    with pytest.raises(Exception, match="topic orders") as raised:
        failing.awaitTermination(SECONDS)
    cause = str(query_error(raised.value))
    assert re.search("a body does not fit: .*topic orders, broker broker-a, queue_id 0, queue_offset [13]", cause), (
        cause
    )
    group["pipeline"]["options"]["bad_rows"] = "leave_out"
    failing = start(spark, order_of(broker.nameserver, **group), tmp_path / "refused")
    with pytest.raises(Exception, match="topic orders") as raised:
        failing.awaitTermination(SECONDS)
    cause = str(query_error(raised.value))
    assert re.search(
        "the row of topic orders, queue 0 of broker-a, offset [02]; batch 0 has orders@broker-a:0", cause
    ), cause
    group["sink"]["bad_rows"] = "leave_out"
    assert start(spark, order_of(broker.nameserver, **group), tmp_path).awaitTermination(SECONDS)
    assert prices_database.run("SELECT id, note FROM prices ORDER BY id") == [(n, str(150 + n)) for n in range(50)]
    refused = prices_database.run("SELECT topic, queue_offset FROM rmqd_refused_prices ORDER BY 2")
    assert refused == [("orders", 0), ("orders", 2)]


@pytest.mark.process
def test_a_name_in_a_statement_is_reported(prices_database: Database) -> None:
    with (
        pytest.raises(RmqdError, match=r'sink prices: relation "absent" does not exist \(42P01\)$'),
        open_connection(prices_database.url, "prices") as connection,
    ):
        connection.execute("SELECT * FROM absent")


@pytest.mark.process
def test_the_text_of_a_trigger_is_not_reported(prices_database: Database) -> None:
    """The text may have the row's values, in quotes or not, with any code."""
    for code in ("P0001", "23514"):
        raising = f"DO $$ BEGIN RAISE EXCEPTION 'no % here', 4111 USING ERRCODE = '{code}'; END $$"
        with (
            pytest.raises(RmqdError, match=rf"sink prices: a function or trigger refused a row.* \({code}\)$"),
            open_connection(prices_database.url, "prices") as connection,
        ):
            connection.execute(raising)
