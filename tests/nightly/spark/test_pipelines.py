"""Pipelines from a configuration to their sinks, in a real session over an embedded broker."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.errors import ConfigError, RmqdError
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need
from tests.waiting import wait_until

need("pyspark", "pyarrow")

from rmqd.spark.engine.checkpoint_generations import generations_of  # noqa: E402
from rmqd.spark.engine.spark_figures import batch_progress_of  # noqa: E402
from tests.spark.group_queries import (  # noqa: E402
    GROUP,
    SECONDS,
    TOP,
    archive_order,
    kept_order,
    order_of,
    start,
    start_generation,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


from tests.spark.test_pipelines import (  # noqa: E402
    Counts,
    archived,
    run,
)

COMPRESSED = 1


@pytest.fixture(autouse=True)
def no_derby_log(spark: SparkSession, tmp_path: Path) -> None:
    """Derby would write it to the working directory."""
    java = spark.sparkContext._jvm
    assert java is not None
    java.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))


def test_corrupt_messages_are_skipped_if_configured(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """They are counted. By default the query fails with the message's offset."""
    broker.create_topic("orders", 1)
    broker.create_topic("refunds", 1)
    broker.send("orders", "first")
    broker.send("orders", "not compressed", sys_flag=COMPRESSED)
    order = archive_order(broker.nameserver, tmp_path)
    with pytest.raises(Exception, match="the message at offset 1 is corrupt"):
        run(spark, order, tmp_path)
    order = archive_order(broker.nameserver, tmp_path, {"on_corrupt_message": "skip"})
    with Counts(spark, order) as counts:
        run(spark, order, tmp_path)
        assert [row["body"] for row in archived(tmp_path)] == [b"first"]
        assert "decode_error" not in archived(tmp_path)[0]
        wait_until(lambda: counts.received == {"orders": 2}, "the batch's counts")
    assert (counts.handled["orders"]["acked"], counts.handled["orders"]["corrupt"]) == (1, 1)


def test_a_day_starts_at_the_configured_utc_offset(spark: SparkSession) -> None:
    """The session's time zone does not matter."""
    cases: list[tuple[str, str]] = [("+00:00", "1970-01-01"), ("-00:01", "1969-12-31"), ("+14:00", "1970-01-01")]
    for offset, day in cases:
        from rmqd_handlers.pipelines import ArchiveOptions, archive

        spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
        try:
            rows = spark.range(1).selectExpr(
                "timestamp_seconds(id) AS store_timestamp", "'orders' AS topic", "1 AS queue_offset"
            )
            made = archive(rows, spark, ArchiveOptions.model_validate({"utc_offset": offset}))
            assert [str(row.date) for row in made.collect()] == [day]
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize("files", [1, 3])
def test_rows_of_a_day_and_a_topic_are_divided_among_the_configured_tasks(spark: SparkSession, files: int) -> None:
    """Each task writes a file."""
    from pyspark.sql.functions import spark_partition_id

    from rmqd_handlers.pipelines import ArchiveOptions, archive

    rows = spark.range(0, 100, 1, 4).selectExpr(
        "timestamp_seconds(id) AS store_timestamp", "concat('t', id % 2) AS topic", "id AS queue_offset", "id AS body"
    )
    made = archive(rows, spark, ArchiveOptions.model_validate({"files": files, "columns": ["body"]}))
    assert made.columns == ["body", "date", "topic"]
    found = made.select("topic", spark_partition_id().alias("task")).distinct().groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in found} == {"t0": files, "t1": files}


@pytest.mark.slow
@pytest.mark.timeout(300)  # one more JVM, on a machine that may be busy
def test_a_killed_driver_leaves_each_message_once(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """SIGKILL hits between the moves of a batch's files. This process continues the group.

    Meanwhile an operator has reset one of its topics. Its messages are read again, but none of the other topic.
    """
    for topic in ("orders", "refunds"):
        broker.fill(topic, 2, 50)
    command = [sys.executable, "-m", "tests.nightly.spark.archive_driver", broker.nameserver, str(tmp_path), "1"]
    driver = subprocess.run(command, cwd=TOP, timeout=SECONDS, check=False, capture_output=True, text=True)
    assert driver.returncode == -signal.SIGKILL, driver.stderr
    assert len(archived(tmp_path)) == 100  # one of two files
    broker.reset(GROUP, "refunds", {0: 0, 1: 0})
    order = kept_order(broker.nameserver, tmp_path)
    generation = generations_of(order, spark).prepare_generation()
    assert generation.number == 2
    assert start_generation(spark, order, tmp_path, generation).awaitTermination(SECONDS)
    bodies = sorted(f"{queue_id}:{number}" for queue_id in range(2) for number in range(50))
    found = {
        topic: sorted(row["body"].decode() for row in archived(tmp_path) if row["topic"] == topic)
        for topic in ("orders", "refunds")
    }
    assert found == {"orders": bodies, "refunds": sorted(bodies * 2)}


# --- per_minute


def send_at(broker: EmbeddedBroker, *messages: tuple[str, str, str]) -> None:
    """Send messages with a born time: (10:00:30, tag, body)."""
    times = [datetime.fromisoformat(f"2026-03-01T{time}+00:00") for time, _, _ in messages]
    send_born(broker, *((time, tag, body) for time, (_, tag, body) in zip(times, messages, strict=True)))


def send_born(broker: EmbeddedBroker, *messages: tuple[datetime, str, str]) -> None:
    """Send messages with a born time on any day."""

    async def send() -> None:
        client = ClientInstance(ClientOptions(nameservers=(broker.nameserver,)))
        for time, tag, body in messages:
            born = round(time.timestamp() * 1000)
            await client.producer.send(OutgoingMessage("orders", body.encode(), tags=tag, born_timestamp_ms=born))
        await client.close()

    asyncio.run(send())


def sent(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    rows = (
        spark.read.format("rocketmq")
        .options(nameserver=broker.nameserver, subscribe=topic, includeProperties=True)
        .load()
        .collect()
    )
    return [{"tags": row.tags, "keys": row.keys, **json.loads(row.body), **row.properties} for row in rows]


def test_orders_per_minute_and_tag_are_written_to_a_topic(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """A window is sent once the watermark has passed it. Later rows are dropped and reported; less late rows count."""
    for topic in ("orders", "refunds", "per_minute"):
        broker.create_topic(topic, 1)
    pipeline = {"plugin": "per_minute", "options": {"lateness": "1m", "sum": "$.amount"}}
    order = order_of(broker.nameserver, pipeline=pipeline, sink={"format": "rocketmq", "topic": "per_minute"})
    send_at(
        broker,
        ("10:00:10", "paid", '{"amount": 2.5}'),
        ("10:00:50", "open", '{"amount": 1}'),
        ("10:00:20", "paid", "no JSON"),
        ("10:05:00", "paid", '{"amount": 4}'),
    )
    run(spark, order, tmp_path)
    found = sorted(sent(spark, broker, "per_minute"), key=lambda one: str(one["tags"]))
    names = ("topic", "tag", "start", "end", "messages", "sum")
    assert [tuple(one.get(name) for name in names) for one in found] == [
        ("orders", "open", "2026-03-01T10:00:00Z", "2026-03-01T10:01:00Z", 1, 1.0),
        ("orders", "paid", "2026-03-01T10:00:00Z", "2026-03-01T10:01:00Z", 2, 2.5),
    ]
    assert found[1]["tags"] == "paid"
    assert found[1]["keys"] == "orders/paid/2026-03-01T10:00:00Z"
    assert found[1]["RMQD_QUERY"]
    assert found[1]["RMQD_BATCH"].isdecimal()
    send_at(broker, ("10:00:30", "paid", "{}"), ("10:04:30", "paid", "{}"), ("10:10:00", "paid", "{}"))
    query = start(spark, order, tmp_path)
    assert query.awaitTermination(SECONDS)
    assert sum(batch_progress_of(progress).late_rows for progress in query.recentProgress) == 1
    later = sent(spark, broker, "per_minute")[2:]
    assert sorted((one["start"][11:16], one["messages"]) for one in later) == [("10:04", 1), ("10:05", 1)]


def test_a_clock_that_is_ahead_does_not_make_other_messages_late(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """One producer sends a message of tomorrow."""
    for topic in ("orders", "refunds", "per_minute"):
        broker.create_topic(topic, 1)
    pipeline = {"plugin": "per_minute", "options": {"lateness": "0s", "window": "100ms"}}
    order = order_of(broker.nameserver, pipeline=pipeline, sink={"format": "rocketmq", "topic": "per_minute"})
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for tag in ("right", "wrong", "right", "right"):
        send_born(broker, (tomorrow if tag == "wrong" else datetime.now(UTC), tag, "{}"))
        run(spark, order, tmp_path)
    assert [one["tag"] for one in sent(spark, broker, "per_minute")].count("right") == 2


def test_a_state_continues_after_a_batch_that_was_already_written(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """A driver died between the manifest and the state. The next one moves its files, and makes its state."""
    for topic in ("orders", "refunds"):
        broker.create_topic(topic, 1)
    sink = {"format": "parquet", "path": str(tmp_path / "archive")}
    order = order_of(broker.nameserver, pipeline={"plugin": "per_minute", "options": {"lateness": "1m"}}, sink=sink)
    send_at(broker, ("10:00:10", "paid", "{}"), ("10:05:00", "paid", "{}"))
    run(spark, order, tmp_path)
    last = max(int(path.name) for path in (tmp_path / "checkpoint" / "commits").iterdir() if path.name.isdecimal())
    lost = [tmp_path / "checkpoint" / "commits" / str(last)]
    lost += (tmp_path / "checkpoint" / "state").rglob(f"{last + 1}*.delta")
    assert len(lost) > 1
    for path in lost:
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    send_at(broker, ("10:10:00", "paid", "{}"))
    run(spark, order, tmp_path)
    windows = [json.loads(row["body"]) for row in archived(tmp_path)]
    assert sorted((one["start"][11:16], one["messages"]) for one in windows) == [("10:00", 1), ("10:05", 1)]


# --- the document


def test_the_documented_pipeline_does_what_the_page_says(spark: SparkSession) -> None:
    """Its code runs unchanged, over some rows."""
    from rmqd.plugins.handler_catalogue import pipeline_of

    page = (TOP / "docs" / "pipelines.md").read_text()
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(page.split("```python spark\n")[1].split("```")[0], "docs/pipelines.md", "exec"), names)
    pipeline = pipeline_of("large_orders", names["large_orders"]).bound({"least": 10})
    rows = spark.range(8, 12).selectExpr(
        "'orders' AS topic", "string(id) AS keys", "cast('{\"amount\": ' || id || '.5}' AS binary) AS body"
    )
    assert sorted(row.amount for row in pipeline(rows, spark).collect()) == [10.5, 11.5]


# --- other sinks


def prices(frame: DataFrame, spark: SparkSession) -> DataFrame:
    return frame.selectExpr("CAST(CAST(body AS STRING) AS INT) AS price", "queue_offset AS place")


def nothing(frame: DataFrame, spark: SparkSession) -> None:
    return None


def a_table(frame: DataFrame, spark: SparkSession) -> DataFrame:
    return spark.range(1)


def fails(frame: DataFrame, spark: SparkSession) -> DataFrame:
    raise KeyError("price")


def note(frame: DataFrame, batch_id: int, options: dict[str, str]) -> None:
    rows = [row.price for row in frame.collect()]
    with Path(options["path"]).open("a") as file:
        file.write(f"{batch_id}: {rows}\n")


PRICES = {"plugin": "tests.nightly.spark.test_pipelines:prices"}


def filled(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 1)
    broker.create_topic("refunds", 1)
    broker.send("orders", "5", "6")


def test_a_function_receives_each_batch(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """It also receives the batch's number and the sink's options."""
    filled(broker)
    sink = {
        "format": "foreach_batch",
        "plugin": "tests.nightly.spark.test_pipelines:note",
        "options": {"path": str(tmp_path / "notes")},
    }
    run(spark, order_of(broker.nameserver, pipeline=PRICES, sink=sink), tmp_path)
    assert (tmp_path / "notes").read_text() == "0: [5, 6]\n"


def test_a_batch_column_lets_a_repeated_batch_replace_its_rows(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Spark contains the database Derby. A batch whose commit is lost is repeated, and its rows exist once."""
    filled(broker)
    options = {"url": f"jdbc:derby:memory:{tmp_path.name};create=true", "dbtable": "prices"}
    sink = {"format": "jdbc", "batch_column": "rmqd_batch", "options": options}
    order = order_of(broker.nameserver, pipeline=PRICES, sink=sink)
    run(spark, order, tmp_path)
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    run(spark, order, tmp_path)
    broker.send("orders", "7")
    run(spark, order, tmp_path)
    rows = spark.read.format("jdbc").options(**options).load().collect()
    assert sorted((row.price, row.asDict()["rmqd_batch"][-2:]) for row in rows) == [(5, "/0"), (6, "/0"), (7, "/1")]


REFUSED = {
    "delta": (
        {"format": "delta", "path": "/data"},
        PRICES,
        "needs the Delta Lake package, which Spark does not contain",
    ),
    "columns": (
        {"format": "rocketmq", "topic": "out"},
        PRICES,
        "column body: missing; expected a binary or a string",
    ),
    "a database": (
        {"format": "jdbc", "options": {"url": "jdbc:derby:memory:absent;password=x", "dbtable": "prices"}},
        PRICES,
        "sink prices of jdbc:derby:memory:absent: java.sql.SQLException: Database 'memory:absent' not found",
    ),
    "nothing": (
        {"format": "rocketmq", "topic": "out"},
        {"plugin": "tests.nightly.spark.test_pipelines:nothing"},
        "the pipeline tests.nightly.spark.test_pipelines:nothing returned a NoneType; expected a DataFrame",
    ),
    "no stream": (
        {"format": "rocketmq", "topic": "out"},
        {"plugin": "tests.nightly.spark.test_pipelines:a_table"},
        "returned rows that do not stream",
    ),
    "a failure": (
        {"format": "rocketmq", "topic": "out"},
        {"plugin": "tests.nightly.spark.test_pipelines:fails"},
        "tests.nightly.spark.test_pipelines:fails failed: KeyError: 'price' \\(.*test_pipelines.py:",
    ),
}


@pytest.mark.parametrize(("sink", "pipeline", "message"), REFUSED.values(), ids=REFUSED)
def test_a_group_that_cannot_run_is_refused_before_anything_is_read(
    spark: SparkSession, tmp_path: Path, sink: dict[str, Any], pipeline: dict[str, Any], message: str
) -> None:
    """No broker has that address."""
    with pytest.raises((RmqdError, ConfigError), match=message):
        start(spark, order_of("127.0.0.1:1", pipeline=pipeline, sink=sink), tmp_path)
    assert not (tmp_path / "checkpoint").exists()
