"""The source in a real session, as the user of a notebook uses it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rmqd.spark
from tests.spark.embedded_broker import BROKER, EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark import register  # noqa: E402
from rmqd.spark.views import create_views  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from tests.spark.test_with_session import (  # noqa: E402
    run,
    written,
)


def test_the_documented_notebook_runs(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Unchanged, except for the addresses of RocketMQ and the files."""
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    code = page.split("```python spark\n")[1].split("```")[0]
    for there, here in (("127.0.0.1:9876", broker.nameserver), ("/data", str(tmp_path))):
        assert there in code
        code = code.replace(there, here)
    broker.create_topic("orders", 1)
    broker.send("orders", "first", "second", tags="paid")
    exec(compile(code, "docs/spark.md", "exec"), {})
    assert "|paid|       2|" in capfd.readouterr().out
    assert [row.body for row in spark.read.parquet(str(tmp_path / "orders")).collect()] == ["first", "second"]
    assert broker.offsets("orders_archive", "orders") == {0: 2}


def test_the_shorter_documented_examples_run(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """All run in one session, as a reader would type them. tests/nightly/spark/test_jobs.py has others."""
    names: dict[str, Any] = {"spark": spark, "rmqd": rmqd}

    def run(page: str, part: str) -> str:
        text = (Path(__file__).parents[3] / "docs" / page).read_text()
        [code] = [
            one for one in re.findall(r"^```python spark\n(.*?)^```", text, re.DOTALL | re.MULTILINE) if part in one
        ]
        exec(re.sub(r"127.0.0.1:9876|ns-1:9876", broker.nameserver, code), names)
        return capfd.readouterr().out

    broker.create_topic("orders", 1)
    broker.send("orders", '{"id": 17, "lines": [{"sku": "ink", "price": 2.5}]}', "no JSON", tags="paid")
    broker.fill("refunds-eu", 1, 1)
    shown = run("spark.md", "_bad_row IS NULL")
    assert "| 17|" in shown
    assert "[6E 6F 20 4A 53 4" in shown, "the body that is not JSON is shown"
    try:
        run("spark.md", "create_views(")
        run("spark.md", "filterPushdown")
        assert names["orders"].where("tags = 'paid'").count() == 2
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        for view in ("orders", "refunds-eu"):
            spark.catalog.dropTempView(view)

    run("from-kafka.md", "CAST(body AS STRING) AS value")
    written = names["orders"].writeStream.format("noop").option("checkpointLocation", str(tmp_path / "noop")).start()
    written.processAllAvailable()
    names["query"] = written
    assert run("spark.md", "rmqd.spark.lag(query").startswith("0 {")
    written.stop()

    refunds = spark.read.format("rocketmq").options(nameserver=broker.nameserver, subscribe="refunds-eu")
    names["refunds"] = refunds.option("includeProperties", True).load()
    run("spark.md", "dropDuplicates")
    assert names["once"].count() == 1
    run("databricks-and-emr.md", "def where(")


def test_a_query_has_kafkas_columns_its_lag_and_short_errors(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """The error for a missing topic has few lines, with the reason among the first ones."""
    broker.fill("orders", 2, 3)
    source = spark.readStream.format("rocketmq").options(nameserver=broker.nameserver, startingOffsets="earliest")
    frame = source.option("subscribe", "orders").load()
    assert frame.columns == ["keys", "body", "topic", "queue_id", "queue_offset", "store_timestamp", "tags"]
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    query.processAllAvailable()
    broker.send("orders", "one more", queue_id=0)
    query.processAllAvailable()
    lag = rmqd.spark.lag(query.lastProgress)
    query.stop()
    assert lag is not None
    assert (lag.total, len(lag.queues)) == (0, 2)
    absent = source.option("subscribe", "absent").load().writeStream.format("noop").start()
    with pytest.raises(Exception, match="absent") as streamed:
        absent.awaitTermination(60)
    read = spark.read.format("rocketmq").options(nameserver=broker.nameserver, subscribe="absent").load()
    with pytest.raises(Exception, match="absent") as counted:
        read.count()
    assert "absent" in str(streamed.value).splitlines()[0]  # Spark then says where the query was
    lines = str(counted.value).split("\n\nJVM stacktrace")[0].strip().splitlines()
    assert len(lines) <= 5, lines


def test_sql_has_topics_as_views(spark: SparkSession, broker: EmbeddedBroker) -> None:
    """docs/spark.md creates the first view. A table is refused, and the error names the alternative."""
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    create, select = (
        page.split("```sql\n")[1].split("```")[0].replace("127.0.0.1:9876", broker.nameserver).split(";")[:2]
    )
    broker.fill("orders", 2, 3)
    try:
        spark.sql(create)
        assert [row.messages for row in spark.sql(select).collect()] == [6]
        broker.fill("refunds-eu", 1, 2)
        create_views(
            spark, broker.nameserver, ["orders", "refunds-eu"], columns="body,queue_id", startingTimestamp="-1h"
        )
        joined = spark.sql("SELECT * FROM orders JOIN `refunds-eu` USING (body)").collect()
        assert sorted((row.body, len(row)) for row in joined) == [(b"0:0", 3), (b"0:1", 3)]
    finally:
        for view in ("orders", "refunds-eu"):
            spark.catalog.dropTempView(view)
    with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
        spark.sql(create.replace("OR REPLACE TEMPORARY VIEW", "TABLE"))


def test_a_format_that_spark_knows_is_not_registered_again(spark: SparkSession) -> None:
    """Otherwise Spark would report that the format replaces itself, each time a notebook's first cell runs."""
    formats = spark._jsparkSession.sessionState().dataSourceManager()
    known = formats.lookupDataSource("rocketmq")
    register(spark)
    assert formats.lookupDataSource("rocketmq").equals(known)


def test_process_all_available_reads_all_messages_sent_before(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """The options are the default ones."""
    broker.create_topic("orders", 2)
    read = spark.readStream.format("rocketmq").options(nameserver=broker.nameserver, subscribe="orders")
    stream = read.option("startingOffsets", "earliest").load().writeStream.format("memory").queryName("seen")
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        counts = []
        for round_number in range(4):
            broker.send("orders", *map(str, range(8)), queue_id=round_number % 2)
            query.processAllAvailable()
            counts.append(spark.table("seen").count())
    finally:
        query.stop()
    assert counts == [8, 16, 24, 32]


def test_conditions_are_known_before_anything_is_read(spark: SparkSession, broker: EmbeddedBroker) -> None:
    """Without its own setting Spark refuses such a read, and names the setting."""
    broker.fill("orders", 4, 25)
    options = {"nameserver": broker.nameserver, "subscribe": "orders"}
    frame = spark.read.format("rocketmq").options(**options, pushdown=True).load()
    setting = "spark.sql.python.filterPushdown.enabled"
    with pytest.raises(Exception, match=setting):
        frame.count()
    try:
        spark.conf.set(setting, True)
        late = frame.where("queue_id IN (1, 3) AND queue_offset >= 20 AND store_timestamp > now() - INTERVAL 1 HOUR")
        assert late.rdd.getNumPartitions() == 2
        bodies = late.selectExpr("CAST(body AS STRING) AS body").collect()
    finally:
        spark.conf.unset(setting)
    assert sorted(row.body for row in bodies) == [
        f"{queue_id}:{number}" for queue_id in (1, 3) for number in range(20, 25)
    ]


def test_a_data_loss_fails_the_query_and_names_the_offsets(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Without failOnDataLoss the query continues after the gap."""
    broker.fill("orders", 1, 7)
    broker.pass_hours(73)
    broker.send("orders", "0:7")
    start = json.dumps({"orders": {BROKER: {"0": 5}}})
    with pytest.raises(
        Exception, match="data loss in orders@broker-a:0: offsets 5 to 6 are missing: the broker has 7 to 7"
    ):
        run(spark, broker, tmp_path, startingOffsets=start)
    run(spark, broker, tmp_path, startingOffsets=start, failOnDataLoss="false")
    assert written(spark, tmp_path) == ["0:7"]
