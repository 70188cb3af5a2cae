"""The sink `postgresql`, over a real PostgreSQL: each batch once, whoever writes it and however often."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog.testing

from rmqd.config.model.spark import SinkConfig
from rmqd.errors import RmqdError
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow", "psycopg")

from rmqd.spark.pipelines.micro_batch import MicroBatch  # noqa: E402
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
    """One test's."""

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


def test_rows_replace_those_of_their_key(spark: SparkSession, prices_database: Database) -> None:
    """In a batch the last one by `order_by` counts, and one that is there and later stays; null is before all."""
    prices_database.run(TABLE)
    first = rows(spark, (1, 10, 5), (2, 20, 5), (1, 11, 6), (1, 9, 4))
    sink = prices_database.sink(first.schema, keys=["id"], order_by=["place"])
    sink.write(first, batch(0))
    assert prices_database.run("SELECT * FROM prices ORDER BY id") == [(1, 11, 6), (2, 20, 5)]
    with structlog.testing.capture_logs() as logs:
        sink.write(rows(spark, (1, 12, 5), (2, None, 7), (3, 30, 1)), batch(1))
    assert [entry["keys"] for entry in logs if entry["event"] == "spark.older_rows_left_out"] == [1]
    assert prices_database.run("SELECT * FROM prices ORDER BY id") == [(1, 11, 6), (2, None, 7), (3, 30, 1)]


def test_a_batch_that_is_repeated_is_left_out(spark: SparkSession, prices_database: Database) -> None:
    """By the same driver, and by one that goes on after it; a batch that is planned anew is told."""
    prices_database.run(UNKEYED)
    frame = rows(spark, (1, 10, 5), (2, 20, 6))
    for _ in range(2):
        sink = prices_database.sink(frame.schema)
        sink.take_over()
        sink.prepare(frame.schema)
        for _ in range(2):
            sink.write(frame, batch(3))
            assert sink.has(batch(3))
    assert sorted(prices_database.run("SELECT id FROM prices")) == [(1,), (2,)]
    assert prices_database.run("SELECT writer, target, query, batch, rows FROM rmqd_batches") == [
        ("prices-group", "prices", QUERY, 3, 2)
    ]
    assert not sink.has(batch(3, b"other"))
    assert not sink.has(batch(4))
    for late in (batch(3, b"other"), batch(2)):
        with pytest.raises(RmqdError, match=r"has batch 3 of this query already.*was the checkpoint taken back"):
            sink.write(frame, late)
    sink.write(frame, batch(0, query="another"))
    assert len(prices_database.run("SELECT id FROM prices")) == 4


def prices(frame: DataFrame, spark: SparkSession) -> DataFrame:
    return frame.selectExpr("topic", "CAST(CAST(body AS STRING) AS INT) AS price", "queue_offset AS place")


def test_a_group_writes_its_batches_once(
    spark: SparkSession, broker: EmbeddedBroker, prices_database: Database, tmp_path: Path
) -> None:
    """From YAML: a batch whose commit is lost comes again, and stands there once; then the group goes on."""
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
