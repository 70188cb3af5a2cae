"""The process that drives Spark for a group, as the daemon starts it. It is ended before Spark has started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqd.consumer.pauses import WHOLE_GROUP
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot
from rmqd.daemon.groups.spark_group import DRIVER_MODULE, DriverSpec, SparkDriverProcess
from rmqd.errors import ConfigError
from tests.config.configs import config
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need
from tests.waiting import eventually

pytestmark = pytest.mark.process

need("pyspark", "pyarrow")

SECONDS = 30.0


def order(nameserver: str, **keys: Any) -> DriverSpec:
    """For the group mailer."""
    settings = config("mailer", changes={"mailer": {"engine": "spark"} | keys}, nameserver=nameserver)
    return DriverSpec(settings, (WHOLE_GROUP,))


@asynccontextmanager
async def driver() -> AsyncIterator[tuple[SparkDriverProcess, asyncio.Future[int]]]:
    """A process that waits for its order, and is gone at the end of the block."""
    process = await SparkDriverProcess.begin(DRIVER_MODULE)
    try:
        yield process, process.reading
    finally:
        await process.dispose()


async def joined(process: SparkDriverProcess) -> GroupSnapshot:
    """What it tells once it is in the group."""
    async with asyncio.timeout(SECONDS):
        while process.last_snapshot is None or not process.last_snapshot.client_id:
            await process.ask("snapshot")  # its answer is the last one
    return process.last_snapshot


async def test_it_tells_how_the_group_is_and_ends_when_it_is_told_to(broker: EmbeddedBroker) -> None:
    """A pause that is in force comes with the order."""
    broker.create_topic("orders", 1)
    async with driver() as (process, reading):
        await process.ask("build", order(broker.nameserver))
        snapshot = await joined(process)
        assert (snapshot.name, snapshot.engine, snapshot.state, snapshot.paused) == (
            "mailer",
            "spark",
            "starting",
            True,
        )
        process.post("resume", WHOLE_GROUP)
        assert not (await process.ask("snapshot")).paused
        process.post("stop")
        assert await asyncio.wait_for(reading, SECONDS) == 0
        assert process.last_snapshot is not None
        assert process.last_snapshot.state == "stopped"


async def test_it_ends_with_the_daemon(broker: EmbeddedBroker) -> None:
    """However that ended: its end of the channel closes."""
    broker.create_topic("orders", 1)
    async with driver() as (process, reading):
        await process.ask("build", order(broker.nameserver))
        await joined(process)
        reading.cancel()
        await process._channel.close()
        assert await asyncio.wait_for(process._process.wait(), SECONDS) == 0


async def test_where_no_broker_is_the_group_fails_with_why() -> None:
    """In less time than Spark would take to start."""
    async with driver() as (process, reading):
        await process.ask("build", order("127.0.0.1:1"))
        assert await asyncio.wait_for(reading, SECONDS) == 1
        assert process.last_snapshot is not None
        assert process.last_snapshot.state == "failed"
        assert "127.0.0.1:1" in str(process.last_snapshot.failure)


JAVA = """#!/bin/sh
[ "$1" = --list-modules ] && { echo java.base@17.0.1; echo jdk.incubator.vector@17.0.1; exit 0; }
echo 'Error: Could not create the Java Virtual Machine.' >&2
exit 1
"""


async def test_a_java_that_does_not_start_has_its_last_words_in_the_log(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The group fails with what PySpark makes of it."""
    broker.create_topic("orders", 1)
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(JAVA)
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    async with driver() as (process, reading):
        await process.ask("build", order(broker.nameserver))
        assert await asyncio.wait_for(reading, SECONDS) == 1
        assert process.last_snapshot is not None
        assert "JAVA_GATEWAY_EXITED" in str(process.last_snapshot.failure)
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    said = [event["text"] for event in events if event["event"] == "spark.output_read"]
    assert "Error: Could not create the Java Virtual Machine." in "\n".join(said).splitlines()


async def test_an_order_that_it_cannot_take_is_refused() -> None:
    wrong = order("127.0.0.1:1", allocate_strategy="nobodys")
    async with driver() as (process, reading):
        with pytest.raises(ConfigError, match="nobodys"):
            await process.ask("build", wrong)
        assert await asyncio.wait_for(reading, SECONDS) == 78


async def test_a_signal_has_it_drain(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 1)
    async with driver() as (process, reading):
        await process.ask("build", order(broker.nameserver))
        await joined(process)
        os.kill(process.pid, signal.SIGINT)  # is the daemon's to hear
        os.kill(process.pid, signal.SIGHUP)
        assert (await process.ask("snapshot")).state == "starting"
        os.kill(process.pid, signal.SIGTERM)
        assert await asyncio.wait_for(reading, SECONDS) == 0
        await eventually(
            lambda: process.last_snapshot is not None and process.last_snapshot.state == "stopped", "farewell"
        )
