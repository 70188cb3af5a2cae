"""`rmqd run` with a group on each engine, over an embedded broker: one life of the daemon, from start to drain."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from rmqd.runtime.clock import SystemClock
from tests.daemon.daemon_process import DaemonProcess, daemon
from tests.deploy.dashboards import FOLDER
from tests.nightly.deploy.panels import without_data
from tests.nightly.deploy.prometheus_process import Prometheus
from tests.nightly.spark.two_engines import write_config
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need
from tests.waiting import eventually, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

need("pyspark", "pyarrow")

SECONDS = 150.0  # for conditions that wait for a JVM, on a busy machine
QUEUES = 2
SHOWN = "shown in Grafana"

# In the daemon's working directory, and not installed. Executors must find it anyway.
HANDLER = '''
import os, time
from pathlib import Path


def note(batch, options):
    """Writes down each message when it comes and when it is done; `slow` waits until the test lets it go on."""
    with open(options["path"], "a", buffering=1) as file:
        for message in batch:
            text = message.body.decode()
            file.write(f"begin {text}\\n")
            while text == "slow" and not Path(options["path"] + ".go").exists():
                time.sleep(0.01)
            file.write(f"end {text}\\n")
'''


class Life:
    """The daemon, its folder and its broker."""

    def __init__(self, process: DaemonProcess, http: httpx.AsyncClient, folder: Path, broker: EmbeddedBroker) -> None:
        self.process = process
        self.http = http
        self.broker = broker
        self.config = folder / "rmqd.yaml"
        self.folder = folder

    def handled(self, group: str) -> Counter[str]:
        """How often each body was handled."""
        file = self.folder / group
        lines = file.read_text().splitlines() if file.exists() else []
        return Counter(line.removeprefix("end ") for line in lines if line.startswith("end "))

    def begun(self, group: str) -> list[str]:
        """The bodies that the handler received."""
        lines = (self.folder / group).read_text().splitlines()
        return [line.removeprefix("begin ") for line in lines if line.startswith("begin ")]

    async def until_handled(self, group: str, *bodies: str) -> None:
        """Wait until each body was handled once, and nothing else."""
        await eventually(lambda: len(self.handled(group)) >= len(bodies), self.what(group), SECONDS)
        assert self.handled(group) == Counter(bodies)

    def let_go(self, group: str) -> None:
        """Let the handler finish slow messages."""
        (self.folder / f"{group}.go").touch()

    async def group(self, name: str) -> dict[str, Any]:
        """The group's part of /api/v1/status."""
        document = (await self.http.get("/api/v1/status")).json()
        (found,) = [group for group in document["groups"] if group["name"] == name]
        return dict(found)

    async def group_when(self, name: str, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The same, once the condition holds."""

        async def found() -> dict[str, Any] | None:
            group = await self.group(name)
            return group if condition(group) else None

        return await eventually(found, f"{name} is as wanted", SECONDS)

    def what(self, group: str) -> str:
        """Describe the group for a timeout."""
        return f"{group}: {self.handled(group)}\n{''.join(self.process.text)[-6000:]}"


@pytest.fixture
async def life(tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Life]:
    """A daemon that has just started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noting.py").write_text(HANDLER)
    config = tmp_path / "rmqd.yaml"
    handlers = {
        name: f'{{plugin: "noting:note", options: {{path: {tmp_path}/{name}}}}}' for name in ("archive", "mailer")
    }
    write_config(config, broker.nameserver, handlers)
    broker.create_topic("orders", QUEUES)
    async with daemon(config) as process:
        yield Life(process, await process.started(), tmp_path, broker)


def processes_of(group: int) -> list[int]:
    """The processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, _, member = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:  # it has ended
                continue
            if int(member) == group and state != "Z":
                found.append(int(entry.name))
    return found


async def kill_the_driver(life: Life) -> None:
    """Kill the driver as soon as it has started a JVM. Its processes must end, and another driver replaces it."""
    pid = (await life.process.event("spark.driver_started"))["pid"]
    await eventually(lambda: len(processes_of(pid)) > 1, "the driver starts Java", SECONDS)
    for other in set(processes_of(pid)) - {pid}:
        os.kill(other, signal.SIGSTOP)  # so that it does not notice the driver's death
    os.kill(pid, signal.SIGKILL)
    failed = await life.process.event("group.failed")
    assert (failed["group"], failed["retry_in_seconds"]) == ("archive", 1.0)
    assert f"the Spark driver (pid {pid}) was killed by SIGKILL" in failed["error"]
    await eventually(lambda: not processes_of(pid), "its JVM ends, too")
    await life.process.event("spark.driver_started", count=2)


def sample(text: str, name: str, **labels: str) -> float:
    """Return one value of an exposition."""
    for line in text.splitlines():
        if line.startswith(f"{name}{{") and all(f'{label}="{value}"' in line for label, value in labels.items()):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no {name} with {labels}")


@pytest.mark.timeout(600)
async def test_one_daemon_runs_a_group_on_each_engine(life: Life, spark: SparkSession) -> None:
    """It also survives a killed driver and a pause, and the final drain repeats nothing."""
    first = [f"{queue}:{number}" for queue in range(QUEUES) for number in range(10)]
    life.broker.fill("orders", QUEUES, 10)
    await life.until_handled("mailer", *first)
    await kill_the_driver(life)
    await life.until_handled("archive", *first)

    # with the same names, and with the brokers' lag
    group = await life.group_when(
        "archive",
        lambda group: group["ready"] and all(one["committed"] for one in group["queues"] if not one["is_retry"]),
    )
    assert (group["engine"], group["state"]) == ("spark", "running")
    assert "@spark-" in group["client_id"]
    assert [(one["queue"], one["committed"], one["max"], one["lag"], one["state"]) for one in group["queues"][:2]] == [
        (0, 10, 10, 0, "waiting"),
        (1, 10, 10, 0, "waiting"),
    ]
    metrics = (await life.http.get("/metrics")).text
    for engine, name in (("local", "mailer"), ("spark", "archive")):
        of = {"engine": engine, "group": name, "topic": "orders", "is_retry": "false"}
        assert sample(metrics, "rmqd_messages_received_total", **of) == 20
        assert sample(metrics, "rmqd_messages_handled_total", **of, result="acked") == 20
        assert sample(metrics, "rmqd_handler_duration_seconds_count", **of) == 20
        assert sample(metrics, "rmqd_consumer_lag_messages", **of, queue="1") == 0
        assert sample(metrics, "rmqd_assigned_queues", engine=engine, group=name) == QUEUES
    assert sample(metrics, "rmqd_spark_batch_duration_seconds_count", group="archive") >= 1
    assert sample(metrics, "rmqd_spark_batch_phase_seconds_total", group="archive", phase="handling") > 0
    shown = await asyncio.to_thread(status, str(life.http.base_url))
    assert "archive  running, on Spark" in shown

    # in Grafana
    await asyncio.to_thread(see_the_dashboard, life)
    first.append(SHOWN)
    for name in ("mailer", "archive"):
        await life.until_handled(name, *first)
    await life.group_when("archive", lambda group: not any(one["lag"] for one in group["queues"]))

    # a pause, during which the lag grows
    refused = await life.http.post("/api/v1/groups/archive/pause", params={"topic": "orders", "queue": 1})
    assert refused.status_code == 400
    assert "queue 1 alone cannot be paused" in refused.json()["error"]
    assert (await life.http.post("/api/v1/groups/archive/pause")).status_code == 200
    life.broker.send("orders", "while paused")
    await life.until_handled("mailer", *first, "while paused")
    paused = await life.group_when("archive", lambda group: any(one["lag"] for one in group["queues"]))
    assert {one["state"] for one in paused["queues"]} == {"paused"}
    assert "while paused" not in life.handled("archive")
    assert (await life.http.post("/api/v1/groups/archive/resume")).status_code == 200
    await life.until_handled("archive", *first, "while paused")

    # a stop while a handler is at work
    life.broker.send("orders", "slow")
    await eventually(lambda: "slow" in life.begun("archive"), life.what("archive"), SECONDS)
    life.let_go("mailer")
    life.process.send(signal.SIGTERM)
    await life.process.event("signal.received")
    life.broker.send("orders", "too late")
    assert "slow" not in life.handled("archive")
    life.let_go("archive")
    assert await life.process.exit_code() == 0
    assert life.handled("archive") == Counter([*first, "while paused", "slow"])
    assert life.broker.offsets("archive", "orders") == {0: 13, 1: 10}

    # another start, in this process, continues at the committed offsets
    await run_what_is_there(life.config, spark)
    assert life.handled("archive") == Counter([*first, "while paused", "slow", "too late"])
    assert life.broker.offsets("archive", "orders") == {0: 14, 1: 10}


def see_the_dashboard(life: Life) -> None:
    """Check that each panel of the Spark dashboard shows data of a real Prometheus, once a micro-batch has ended."""
    path = FOLDER / "rmqd-spark.json"
    with Prometheus(life.folder / "prometheus", [life.http.base_url.netloc.decode()], factor=10) as prometheus:
        wait_until(lambda: prometheus.value("rmqd_spark_batch_duration_seconds_count"), "it is scraped", SECONDS)
        life.broker.send("orders", SHOWN)
        try:
            wait_until(lambda: not without_data(path, prometheus), "each panel shows data", SECONDS)
        except AssertionError as error:
            error.add_note("\n".join(without_data(path, prometheus)))
            raise


class Lent:
    """The tests' session, which must not be stopped."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def stop(self) -> None:
        """Keep the session running."""


async def run_what_is_there(config: Path, spark: SparkSession) -> None:
    """Run the group archive in this process until no messages are left."""
    from rmqd.spark.engine.group_run import GroupRun
    from rmqd.spark.engine.spark_parts import GroupRunParts
    from rmqd.spark.session.group_spec import load_spec

    order = load_spec(config, "archive", ("groups.archive.spark.trigger=available_now",))
    parts, clock = GroupRunParts(order, SystemClock()), SystemClock()
    parts.start_session = lambda on_progress: Lent(spark)  # type: ignore[method-assign, assignment, return-value]
    await GroupRun(order, parts, clock).run()


def status(url: str) -> str:
    """`rmqd status`."""
    command = [sys.executable, "-m", "rmqd", "status", "--http", url]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
