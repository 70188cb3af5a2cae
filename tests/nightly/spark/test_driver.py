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
    """The specification of a driver for the group mailer."""
    settings = config("mailer", changes={"mailer": {"engine": "spark"} | keys}, nameserver=nameserver)
    return DriverSpec(settings, (WHOLE_GROUP,))


@asynccontextmanager
async def driver() -> AsyncIterator[tuple[SparkDriverProcess, asyncio.Future[int]]]:
    """A process that waits for its specification, and is stopped at the end of the block."""
    process = await SparkDriverProcess.begin(DRIVER_MODULE)
    try:
        yield process, process.reading
    finally:
        await process.dispose()


async def joined(process: SparkDriverProcess) -> GroupSnapshot:
    """Wait until the driver has joined the group; return its snapshot."""
    async with asyncio.timeout(SECONDS):
        while process.last_snapshot is None or not process.last_snapshot.client_id:
            await process.ask("snapshot")  # the response sets last_snapshot
    return process.last_snapshot


async def test_the_driver_reports_its_group_and_stops_on_request(broker: EmbeddedBroker) -> None:
    """An existing pause is sent with the specification."""
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


async def test_the_driver_stops_with_the_daemon(broker: EmbeddedBroker) -> None:
    """The end of the channel closes however the daemon ended."""
    broker.create_topic("orders", 1)
    async with driver() as (process, reading):
        await process.ask("build", order(broker.nameserver))
        await joined(process)
        reading.cancel()
        await process._channel.close()
        assert await asyncio.wait_for(process._process.wait(), SECONDS) == 0


async def test_without_a_broker_the_group_fails_with_the_reason() -> None:
    """The failure takes less time than Spark's start."""
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


async def test_the_output_of_a_java_that_does_not_start_is_logged(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The group fails with PySpark's error."""
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


async def test_an_invalid_specification_is_refused() -> None:
    wrong = order("127.0.0.1:1", offset_store={"plugin": "nobodys"})
    async with driver() as (process, reading):
        with pytest.raises(ConfigError, match="nobodys"):
            await process.ask("build", wrong)
        assert await asyncio.wait_for(reading, SECONDS) == 78


async def test_only_sigterm_drains_the_driver(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 1)
    async with driver() as (process, reading):
        await process.ask("build", order(broker.nameserver))
        await joined(process)
        os.kill(process.pid, signal.SIGINT)  # handled by the daemon
        os.kill(process.pid, signal.SIGHUP)
        assert (await process.ask("snapshot")).state == "starting"
        os.kill(process.pid, signal.SIGTERM)
        assert await asyncio.wait_for(reading, SECONDS) == 0
        await eventually(
            lambda: process.last_snapshot is not None and process.last_snapshot.state == "stopped", "it stops"
        )
