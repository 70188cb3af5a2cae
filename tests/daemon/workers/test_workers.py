"""`--workers N`: several processes of a group, shown and controlled as one daemon."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from rmqd.errors import ExitCode
from tests.daemon.daemon_process import GROUP, DaemonProcess, daemon, plug_in, write_config
from tests.waiting import eventually

HELD_BACK = """
import pathlib, time
held = pathlib.Path(__file__).with_name("held")
if held.with_name("hold").exists():
    held.with_name("hold").rename(held)
    while held.exists(): time.sleep(0.01)
class Handler:
    def handle(self, batch): pass
"""

pytestmark = pytest.mark.process


async def worker_pids(client: httpx.AsyncClient) -> dict[int, int]:
    """Process ids by worker number, from the status."""
    return {worker["worker"]: worker["pid"] for worker in (await client.get("/api/v1/status")).json()["workers"]}


async def both_run(running: DaemonProcess) -> httpx.AsyncClient:
    """Wait for both workers, and return an HTTP client. The daemon itself does not wait for slow workers."""
    client = await running.started()

    async def is_so() -> bool:
        return len(await worker_pids(client)) == 2

    await eventually(is_so, "both workers run", 60)
    return client


def gone(pid: int) -> bool:
    """Whether the process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


async def restarted(running: DaemonProcess, client: httpx.AsyncClient, old: dict[int, int], number: int) -> int:
    """Wait until a worker is replaced, and return the pid of the new worker."""

    async def new_pid() -> int | None:
        pid = (await worker_pids(client)).get(number)
        return None if pid == old[number] else pid

    return await eventually(new_pid, f"worker {number} is replaced", 60)


async def test_workers_form_one_daemon_and_a_replaced_worker_keeps_the_pause(tmp_path: Path) -> None:
    """Workers share the status and the metrics, and readiness covers each of them. Replacements are counted.

    Changes while the replacement imports its handler apply to it too. SIGTERM stops all workers.
    """
    config = write_config(tmp_path, "mailer")
    environment = plug_in(config, HELD_BACK)
    async with daemon(config, "--workers", "2", environment=environment) as running:
        client = await both_run(running)
        document = (await client.get("/api/v1/status")).json()
        assert [group["name"] for group in document["groups"]] == ["mailer"]
        assert len({worker["client_id"] for worker in document["workers"]}) == 2
        ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert "[-] group mailer in worker 1: " in ready.text
        assert "[-] group mailer in worker 2: " in ready.text
        metrics = (await client.get("/metrics")).text
        assert 'rmqd_workers{state="running"} 2.0' in metrics
        assert metrics.count('rmqd_group_state{engine="local",group="mailer",state="running"}') == 1

        await client.post("/api/v1/groups/mailer/pause?topic=orders&queue=1")
        before = await worker_pids(client)
        (tmp_path / "hold").touch()
        os.kill(before[1], signal.SIGKILL)
        died = await running.event("worker.died")
        assert (died["worker"], died["exit_code"]) == (1, -signal.SIGKILL)
        assert "[-] workers: worker 1 of 2" in (await client.get("/readyz")).text
        await eventually((tmp_path / "held").exists, "the new one imports its handler", 60)
        await client.post("/api/v1/groups/mailer/pause")
        await client.post("/api/v1/groups/mailer/resume?topic=orders&queue=1")
        config.write_text(config.read_text() + GROUP.format(name="audit", more=""))
        assert (await client.post("/api/v1/reload")).json()["started"] == ["audit"]
        (tmp_path / "held").unlink()
        await restarted(running, client, before, 1)
        assert (await worker_pids(client))[2] == before[2]
        assert (await client.get("/api/v1/status")).json()["groups"][0]["paused"]
        assert "rmqd_worker_restarts_total 1.0" in (await client.get("/metrics")).text
        pauses = (await client.get("/api/v1/status")).json()["groups"][0]["pauses"]
        assert pauses == [{"topic": None, "broker": None, "queue": None}], "both workers have the same pauses"
        assert "group audit in worker 1: " in (await client.get("/readyz")).text

        pids = await worker_pids(client)
        running.send(signal.SIGTERM)
        assert await running.exit_code() == ExitCode.OK
        assert all(gone(pid) for pid in pids.values())
        assert {line["worker"] for line in running.events("group.left")} == {1, 2}
