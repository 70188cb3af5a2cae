"""The five jobs of a data engineer, from the documents' own blocks: a batch by time, windows, a handler, an archive,
and writing. They run as they are written, but for where RocketMQ and the files are. Each tells how long it took.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from rmqd.config.model.root import RootConfig
from rmqd.spark.group_order import GroupOrder
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.fixtures import TOP
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.handlers.handler_query import handler_query  # noqa: E402
from rmqd.spark.pipelines.pipeline_query import pipeline_query  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOISE = 5
SECONDS = 90
ADDRESS = "127.0.0.1:9876"


def block(page: str, language: str, part: str) -> str:
    """The first code block of a page that has some text in it."""
    text = (TOP / "docs" / page).read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(next(one for one in found if part in one))


@pytest.fixture(autouse=True)
def told(spark: SparkSession, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """How long the job took."""
    began = time.perf_counter()
    yield
    with capfd.disabled():
        sys.stdout.write(f"\n{request.node.name}: {time.perf_counter() - began:.1f} s\n")


class Notebook:
    """Runs a block as a notebook's cell, with Spark's log as loud as it is by default."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, capfd: pytest.CaptureFixture[str]) -> None:
        self._spark = spark
        self._address = broker.nameserver
        self._capfd = capfd

    def run(self, code: str) -> str:
        """What it shows. Fails if it says more than a few lines beside that."""
        assert ADDRESS in code
        self._capfd.readouterr()
        self._spark.sparkContext.setLogLevel("WARN")
        try:
            exec(compile(code.replace(ADDRESS, self._address), "docs", "exec"), {"spark": self._spark})
        finally:
            self._spark.sparkContext.setLogLevel("ERROR")
        said = self._capfd.readouterr()
        lines = [*said.out.splitlines(), *said.err.splitlines()]
        noise = [line for line in lines if line.strip() and not line.startswith(("|", "+"))]
        assert len(noise) <= NOISE, noise
        return said.out


@pytest.fixture
def notebook(spark: SparkSession, broker: EmbeddedBroker, capfd: pytest.CaptureFixture[str]) -> Notebook:
    """On the run's session."""
    return Notebook(spark, broker, capfd)


def run_group(spark: SparkSession, broker: EmbeddedBroker, folder: Path, text: str) -> None:
    """Run the only group of a configuration on what there is, to the end."""
    for there, here in (
        (ADDRESS, broker.nameserver),
        ("/var/lib/rmqd", str(folder)),
        ("/data", str(folder)),
        ("path: orders.jsonl", f"path: {folder}/orders.jsonl"),
    ):
        text = text.replace(there, here)
    config: dict[str, Any] = yaml.safe_load(text)
    [(name, group)] = config["groups"].items()
    group["spark"]["trigger"] = "available_now"
    order = GroupOrder(name, RootConfig.model_validate(config))
    make = handler_query if order.settings.pipeline is None else pipeline_query
    query = make(
        spark,
        order,
        checkpoint=str(folder / "checkpoint"),
        starting=None,
        pause_file=str(folder / "pause"),
        on_batch=lambda *_: None,
    )
    assert query.awaitTermination(SECONDS)


def test_a_batch_by_time(notebook: Notebook, broker: EmbeddedBroker) -> None:
    """How many of each tag there are, and how large. No message is an hour old: test_batch_reader has older ones."""
    broker.create_topic("orders", 2)
    broker.send("orders", "first", tags="open")
    broker.send("orders", "second", "third", tags="paid", queue_id=1)
    shown = notebook.run(block("spark.md", "python no-run", "last_hour"))
    assert re.findall(r"\|(\w+)\| +(\d+)\| +[1-9]", shown) == [("open", "1"), ("paid", "2")]


def test_windows(notebook: Notebook, spark: SparkSession, broker: EmbeddedBroker) -> None:
    """A row for each minute and tag."""
    broker.create_topic("orders", 1)
    broker.send("orders", "first", "second", tags="paid")
    broker.send("orders", "third", tags="open")
    notebook.run(block("spark.md", "python no-run", "orders_per_minute"))
    counts = spark.table("orders_per_minute").groupBy("tags").sum("count").collect()
    assert {row.tags: row[1] for row in counts} == {"paid": 2, "open": 1}


def test_a_handler(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """It has the messages of two tags, and the group is committed."""
    broker.create_topic("orders", 2)
    for queue_id, tag in enumerate(("paid", "open")):
        broker.send("orders", f"first {tag}", f"second {tag}", tags=tag, queue_id=queue_id)
    run_group(spark, broker, tmp_path, block("spark.md", "yaml", "order-mailer"))
    lines = [json.loads(line) for line in (tmp_path / "orders.jsonl").read_text().splitlines()]
    assert sorted(line["body"] for line in lines) == ["first paid", "second paid"]
    assert broker.offsets("order-mailer", "orders") == {0: 2, 1: 2}


def test_an_archive(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Of two topics, in folders by date and topic."""
    broker.fill("orders", 1, 2)
    broker.fill("refunds", 1, 1)
    run_group(spark, broker, tmp_path, block("pipelines.md", "yaml", "orders-archive"))
    rows = spark.read.parquet(str(tmp_path / "archive")).groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in rows} == {"orders": 2, "refunds": 1}


def test_writing(notebook: Notebook, spark: SparkSession, broker: EmbeddedBroker) -> None:
    """A row is a message, in JSON."""
    broker.create_topic("refunds", 2)
    rows = spark.createDataFrame(
        [("o-1", "ada", 2.5), ("o-2", "bob", 1.0)], "order_id string, customer string, amount double"
    )
    rows.createOrReplaceTempView("refunds")
    try:
        notebook.run(block("spark.md", "python no-run", 'spark.table("refunds")'))
    finally:
        spark.catalog.dropTempView("refunds")
    found = spark.read.format("rocketmq").options(nameserver=broker.nameserver, subscribe="refunds").load().collect()
    assert {row.keys: (row.tags, row.sharding_key, json.loads(row.body)["amount"]) for row in found} == {
        "o-1": ("refund", "ada", 2.5),
        "o-2": ("refund", "bob", 1.0),
    }
