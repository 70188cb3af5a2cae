"""The example of `transformWithState` in docs/pipelines.md keeps totals from batch to batch and across restarts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from tests.spark.group_queries import SECONDS, order_of, start  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text().split("\n## State between batches")[1]
(CODE,) = re.findall(r"^```python spark\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
(STORE,) = re.findall(r"^ +(spark\.sql\.streaming\.stateStore\.providerClass): (\S+)$", PAGE, re.MULTILINE)
exec(CODE)

WRITTEN: list[list[tuple[Any, ...]]] = []


def note(frame: DataFrame, batch_id: int) -> None:
    """Record the rows of each batch."""
    WRITTEN.append(sorted(map(tuple, frame.collect())))


@pytest.fixture
def stateful(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the property that the page names."""
    spark.conf.set(*STORE)
    yield spark
    spark.conf.unset(STORE[0])


def test_totals_continue_from_batch_to_batch(stateful: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """They also continue across a restart of the query."""
    WRITTEN.clear()
    for topic in ("orders", "refunds"):
        broker.create_topic(topic, 1)
    order = order_of(
        broker.nameserver,
        pipeline={"plugin": "tests.nightly.spark.test_stateful:totals"},
        sink={"format": "foreach_batch", "plugin": "tests.nightly.spark.test_stateful:note", "output_mode": "update"},
        spark={
            "trigger": "available_now",
            "options": {"value": "json", "valueSchema": "customer string, amount double"},
        },
    )
    for bodies in (
        ['{"customer": "ada", "amount": 5}', '{"customer": "grace", "amount": 1}', "no JSON"],
        ['{"customer": "ada", "amount": 2.5}'],
    ):
        broker.send("orders", *bodies)
        assert start(stateful, order, tmp_path).awaitTermination(SECONDS)
    assert WRITTEN == [[("ada", 5.0, 1), ("grace", 1.0, 1)], [("ada", 7.5, 2)]]
