"""The sink `postgresql` over a real PostgreSQL: each batch is stored once, however often it is written."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import structlog.testing

from rmqd.config.model.spark_model import SinkConfig
from rmqd.errors import ConfigError, RmqdError
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow", "psycopg")

import pyarrow as pa  # type: ignore[import-untyped]  # noqa: E402
from pyspark.sql.types import ArrayType, DataType, DecimalType, LongType, StructType, TimestampType  # noqa: E402

from rmqd.handler_api.destinations.upsert_sql import ORDER_KIND  # noqa: E402
from rmqd.spark.pipelines.pipeline_counts import MicroBatch  # noqa: E402
from rmqd.spark.pipelines.postgresql.postgresql_sink import PostgresqlSink  # noqa: E402
from tests.servers.postgresql import PostgresqlServer  # noqa: E402
from tests.spark.group_queries import SECONDS, order_of, start  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = "id bigint, amount int, place bigint"
TABLE = "CREATE TABLE prices (id bigint PRIMARY KEY, amount int, place bigint)"
UNKEYED = "CREATE TABLE prices (id bigint, amount int, place bigint)"
QUERY = "5f3c9f0e-0000-4000-8000-000000000001"


class Database:
    """The database of one test."""

    def __init__(self, server: PostgresqlServer, url: str) -> None:
        self._server = server
        self.url = url

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return self._server.execute(self.url, statement)

    def sink(self, schema: Any, **keys: Any) -> PostgresqlSink:
        """A driver's sink, ready for rows."""
        config = SinkConfig.model_validate({"format": "postgresql", "url": self.url, "table": "prices", **keys})
        sink = PostgresqlSink(config, {}, "prices-group")
        sink.prepare(schema)
        return sink


@pytest.fixture
def prices_database(postgresql: PostgresqlServer, database: str) -> Database:
    return Database(postgresql, database)


def rows(spark: SparkSession, *values: tuple[int, int | None, int]) -> DataFrame:
    return spark.createDataFrame(list(values), ROWS)


def batch(number: int, plan: bytes = b"", query: str = QUERY) -> MicroBatch:
    return MicroBatch(query, number, plan or b"plan %d" % number)


def test_rows_replace_older_rows_of_the_same_key(spark: SparkSession, prices_database: Database) -> None:
    """The last row by `order_by` wins, within a batch and against the stored row."""
    prices_database.run(TABLE)
    first = rows(spark, (1, 10, 5), (2, 20, 5), (1, 11, 6), (1, 9, 4))
    sink = prices_database.sink(first.schema, keys=["id"], order_by=["place"])
    sink.write(first, batch(0))
    assert prices_database.run("SELECT * FROM prices ORDER BY id") == [(1, 11, 6), (2, 20, 5)]
    with structlog.testing.capture_logs() as logs:
        sink.write(rows(spark, (1, 12, 5), (2, None, 7), (3, 30, 1)), batch(1))
    assert [entry["keys"] for entry in logs if entry["event"] == "spark.older_rows_left_out"] == [1]
    assert prices_database.run("SELECT * FROM prices ORDER BY id") == [(1, 11, 6), (2, None, 7), (3, 30, 1)]


def test_a_repeated_batch_is_skipped(spark: SparkSession, prices_database: Database) -> None:
    """The same driver or the next one may repeat it. An older number or another plan is an error."""
    prices_database.run(UNKEYED)
    frame = rows(spark, (1, 10, 5), (2, 20, 6))
    for _ in range(2):
        sink = prices_database.sink(frame.schema)
        sink.refuse_previous_drivers()
        sink.prepare(frame.schema)
        for _ in range(2):
            sink.write(frame, batch(3))
            assert sink.has_batch(batch(3))
    assert sorted(prices_database.run("SELECT id FROM prices")) == [(1,), (2,)]
    assert prices_database.run("SELECT writer, target, query, batch, rows FROM rmqd_batches") == [
        ("prices-group", "prices", QUERY, 3, 2)
    ]
    assert not sink.has_batch(batch(3, b"other"))
    assert not sink.has_batch(batch(4))
    for late in (batch(3, b"other"), batch(2)):
        with pytest.raises(RmqdError, match=r"already has batch 3 of this query.*was the checkpoint reset"):
            sink.write(frame, late)
    sink.write(frame, batch(0, query="another"))
    assert len(prices_database.run("SELECT id FROM prices")) == 4


class Tasks:
    """A frame without Spark: its partitions' Arrow batches, and tasks in this process."""

    def __init__(self, *partitions: list[pa.RecordBatch]) -> None:
        self._partitions = partitions

    def mapInArrow(self, copy: Any, told: str) -> Any:
        done = [row for batches in self._partitions for made in copy(iter(batches)) for row in made.to_pylist()]
        return SimpleNamespace(collect=lambda: [SimpleNamespace(**row) for row in done])


def of_messages(values: list[dict[str, Any]], queue_id: int) -> list[pa.RecordBatch]:
    """Rows of a queue's messages, with the offsets from 0 on, in Arrow batches of 100."""
    place = {"topic": "orders", "broker": "broker-a", "queue_id": queue_id}
    rows = [{**value, "_place": {**place, "queue_offset": offset}} for offset, value in enumerate(values)]
    batches: list[pa.RecordBatch] = pa.Table.from_pylist(rows).to_batches(100)
    return batches


def columns(**kinds: str | DataType) -> StructType:
    schema = StructType()
    for name, kind in kinds.items():
        schema.add(name, kind)
    return schema


@pytest.mark.process
@pytest.mark.parametrize("is_deletion", [False, True])
def test_the_last_row_wins_if_order_by_is_equal(prices_database: Database, is_deletion: bool) -> None:
    """300 keys, each with four versions that have the same `order_by` value."""
    prices_database.run(TABLE)
    gone: dict[str, Any] = {"gone": False} if is_deletion else {}
    schema = columns(id="long", amount="integer", place="long", **dict.fromkeys(gone, "boolean"))
    keys = {"keys": ["id"], "order_by": ["place"], "delete_column": "gone" if is_deletion else ""}
    versions = [{"id": key, "amount": version, "place": 5, **gone} for version in range(4) for key in range(300)]
    frame = Tasks(pa.Table.from_pylist(versions).to_batches(100))
    prices_database.sink(schema, **keys).write(frame, batch(0))  # type: ignore[arg-type]
    assert prices_database.run("SELECT amount, count(*) FROM prices GROUP BY 1") == [(3, 300)]


COARSER: list[tuple[str, str | DataType]] = [
    ("timestamptz(0)", "timestamp"), ("timestamp(3)[]", ArrayType(TimestampType())), ("date", "timestamp"),
    ("real", "double"), ("real", "integer"), ("double precision", "long"), ("double precision", DecimalType(10, 2)),
    ("numeric(12)", DecimalType(12, 2)), ("numeric(12,2)", "double"), ("money", DecimalType(12, 4)),
    ("date", "string"), ("shop_second", "timestamp"), ("shop_text", "long"),
]  # fmt: skip
EXACT: list[tuple[str, str | DataType]] = [
    ("timestamptz", "timestamp"), ("timestamp(6)", "timestamp_ntz"), ("timestamptz(0)", "date"), ("date", "date"),
    ("double precision", "integer"), ("real", "float"), ("numeric(12,2)", DecimalType(12, 2)), ("numeric", "double"),
    ("numeric(20)", "long"), ("bigint[]", ArrayType(LongType())), ("integer", "long"), ("text", "string"),
]  # fmt: skip


@pytest.mark.process
def test_a_table_that_rounds_the_order_is_refused(prices_database: Database) -> None:
    """The group fails at its start, and the error names the column."""
    prices_database.run("CREATE TABLE prices (id bigint PRIMARY KEY, place bigint)")
    prices_database.run("CREATE DOMAIN shop_second AS timestamptz(0); CREATE DOMAIN shop_text AS text")
    for there, kind in (*COARSER, *EXACT):
        prices_database.run(f"ALTER TABLE prices DROP place, ADD place {there}")
        refused = pytest.raises(ConfigError, match=r"order_by: place is .* (an older row would replace|10 is before 9)")
        with refused if (there, kind) in COARSER else contextlib.nullcontext():
            prices_database.sink(columns(id="long", place=kind), keys=["id"], order_by=["place"])


@pytest.mark.process
def test_times_are_written_in_utc(prices_database: Database) -> None:
    """The calendar's last second is after the year 9999 in Shanghai, the session's time zone."""
    prices_database.run("CREATE TABLE prices (at timestamptz, lines jsonb)")
    kind = pa.timestamp("us", "Asia/Shanghai")
    last = pa.array([253402300799 * 1_000_000], pa.int64()).cast(kind)
    lines = pa.ListArray.from_arrays([0, 1], pa.StructArray.from_arrays([last], ["at"]))
    frame = Tasks([pa.RecordBatch.from_arrays([last, lines], names=["at", "lines"])])
    schema = columns(at="timestamp", lines=ArrayType(columns(at="timestamp")))
    prices_database.sink(schema).write(frame, batch(0))  # type: ignore[arg-type]
    found = prices_database.run("SELECT at = '9999-12-31T23:59:59Z', lines FROM prices")
    assert found == [(True, [{"at": "9999-12-31 23:59:59+00:00"}])]


@pytest.mark.process
def test_a_refused_row_is_named_or_skipped(prices_database: Database) -> None:
    """Here the task refuses the row, not the transaction."""
    see_refused(prices_database, {"id": None}, r'null value in column "id", which is one of keys; expected a value')


def see_refused(prices_database: Database, changed: dict[str, Any], reason: str) -> None:
    """Check that one row of 250 is named by topic, queue and offset, and is stored with the reason if it is skipped."""
    prices_database.run("CREATE TABLE shops (id int PRIMARY KEY)")
    prices_database.run("INSERT INTO shops VALUES (1)")
    prices_database.run(
        "CREATE TABLE prices (id bigint PRIMARY KEY, amount int CHECK (amount >= 0), note text, size numeric, "
        "shop int REFERENCES shops DEFERRABLE INITIALLY DEFERRED)"
    )
    schema = columns(id="long", amount="integer", note="string", size="string", shop="integer")
    values: list[dict[str, Any]] = [{"id": n, "amount": 1, "note": "x", "size": "1", "shop": 1} for n in range(250)]
    values[123] |= changed
    frame: Any = Tasks(of_messages(values, 3))
    with pytest.raises(RmqdError, match=rf"{reason}.*the row of topic orders, queue 3 of broker-a, offset 123$"):
        prices_database.sink(schema, keys=["id"]).write(frame, batch(0))
    assert prices_database.run("SELECT * FROM prices") == []
    prices_database.sink(schema, keys=["id"], bad_rows="leave_out").write(frame, batch(0))
    assert prices_database.run("SELECT count(*) FROM prices") == [(249,)]
    ((topic, queue_id, offset, told, content),) = prices_database.run(
        "SELECT topic, queue_id, queue_offset, reason, content FROM rmqd_refused_prices"
    )
    assert (topic, queue_id, offset) == ("orders", 3, 123)
    assert re.search(reason, told)
    assert json.loads(content)["note"] == values[123]["note"]


@pytest.mark.process
@pytest.mark.parametrize("is_deletion", [False, True])
def test_names_may_contain_a_percent_sign(prices_database: Database, is_deletion: bool) -> None:
    """The task refuses the row without a key, and the transaction refuses the negative value."""
    prices_database.run('CREATE SCHEMA "5%s"')
    prices_database.run('CREATE TABLE "5%s"."100%" (id int PRIMARY KEY, "a %s" int CHECK ("a %s" > 0), "%" int)')
    gone: dict[str, Any] = {"%t": False} if is_deletion else {}
    schema = columns(id="integer", **{"a %s": "integer"}, **dict.fromkeys(gone, "boolean"))
    schema.add("%", "integer", metadata={ORDER_KIND: "100% of {topics}"})
    values = [{"id": key, "a %s": value, **gone, "%": 1} for key, value in ((1, 5), (2, -5), (None, 6))]
    keys = {"keys": ["id"], "order_by": ["%"], "delete_column": "%t" if is_deletion else "", "bad_rows": "leave_out"}
    for number in range(2):  # the second driver finds the tables of the first
        sink = prices_database.sink(schema, table='"5%s"."100%"', **keys)
        sink.write(Tasks(of_messages(values, 3)), batch(number))  # type: ignore[arg-type]
        assert sink.has_batch(batch(number))
    assert prices_database.run('SELECT * FROM "5%s"."100%"') == [(1, 5, 1)]
    refused = prices_database.run('SELECT queue_offset FROM "5%s"."rmqd_refused_100%" ORDER BY 1')
    assert refused == [(1,), (1,), (2,), (2,)]


def prices(frame: DataFrame, spark: SparkSession) -> DataFrame:
    return frame.selectExpr("topic", "CAST(CAST(body AS STRING) AS INT) AS price", "queue_offset AS place")


def test_a_group_writes_its_batches_once(
    spark: SparkSession, broker: EmbeddedBroker, prices_database: Database, tmp_path: Path
) -> None:
    """A batch whose commit is lost is repeated, and stored once. Then the group continues."""
    prices_database.run("CREATE TABLE prices (topic text, price int, place bigint)")
    for topic in ("orders", "refunds"):
        broker.create_topic(topic, 1)
    broker.send("orders", "5", "6")
    sink = {"format": "postgresql", "url": prices_database.url, "table": "prices"}
    order = order_of(broker.nameserver, pipeline={"plugin": f"{__name__}:prices"}, sink=sink)
    assert start(spark, order, tmp_path).awaitTermination(SECONDS)
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    broker.send("orders", "7")
    assert start(spark, order, tmp_path).awaitTermination(SECONDS)
    assert sorted(prices_database.run("SELECT * FROM prices")) == [("orders", 5, 0), ("orders", 6, 1), ("orders", 7, 2)]
