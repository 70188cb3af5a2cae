"""`engine: spark` on a cluster that requires TLS and keys: refused, corrected, and without keys in the output."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.nightly.integration.secured_world import WRONG_SECRET, World, secrets_in
from tests.rocketmq import RealCluster, offsets
from tests.spark.needed import need
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

need("pyspark", "pyarrow")

SECONDS = 150  # for conditions that wait for a JVM, on a busy machine


@pytest.mark.timeout(3 * SECONDS)
def test_spark_neither_shows_nor_stores_the_keys(
    rocketmq_secured: RealCluster, request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession
) -> None:
    """Its event log is included. With wrong keys the group reports why it is not ready; a reload corrects them."""
    world = World(rocketmq_secured, request.node.name, tmp_path)
    events = tmp_path / "rmqd" / "events"
    events.mkdir(parents=True)
    conf = {
        "spark.driver.memory": "512m",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{events}",
    }
    on_spark: dict[str, Any] = {"engine": "spark", "spark": {"master": "local[2,4]", "conf": conf}}
    group = {
        world.group: ledger_group(
            world.topic,
            world.ledger,
            "s",
            handler_options={"fail_every": 7},
            **on_spark,
            consume_from_where="first_offset",
        ),
    }
    world.send(0, 40)
    wrong = world.client(secret=WRONG_SECRET)
    with RmqdProcess(tmp_path / "rmqd", rocketmq_secured.nameserver, group, client=wrong) as rmqd:

        def is_refused() -> bool:
            status, body = rmqd.get("/readyz")
            return status == 503 and "client.secret_key does not match client.access_key" in body.decode()

        wait_until(is_refused, "/readyz tells that the secret is another", SECONDS)
        shown = rmqd.everything_shown()
        world.client()  # writes the right one
        rmqd.signal(signal.SIGHUP)
        rmqd.wait_ready(SECONDS)
        wait_until(lambda: len(world.finished()) == 40, "all is handled, what failed once more", SECONDS)
        wait_until(lambda: offsets.lag(world.cluster, world.group, world.topic) == 0, "all is committed", SECONDS)
        shown += rmqd.everything_shown()
        assert any("java" in line for line in rmqd.command_lines()), "Spark's processes are among them"
        assert rmqd.terminate(SECONDS)[0] == 0
        shown += rmqd.written()
        assert any("SparkListenerApplicationStart" in text for text in shown), "Spark's event log is among it"
        assert secrets_in(shown, world) == []
