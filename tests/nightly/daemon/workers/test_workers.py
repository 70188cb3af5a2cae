"""`--workers N`: several processes of a group, shown and controlled as one daemon.

The core of these tests is in tests/daemon/workers/test_workers.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from rmqd.cli.daemon_commands import status_lines
from rmqd.errors import ExitCode
from tests.certificates import CA, OTHER_CA, SERVER_EXPIRED, server_context
from tests.daemon.daemon_process import NEVER_STOPS, daemon, plug_in, write_config
from tests.daemon.workers.test_workers import both_run, gone, worker_pids
from tests.waiting import eventually

pytestmark = pytest.mark.process

FRAGILE = """
import os, pathlib
class Handler:
    def __init__(self, options):
        if pathlib.Path(options["switch"]).exists() and "_worker" in open("/proc/self/cmdline").read():
            raise ValueError("the switch is set")
    def handle(self, batch): pass
"""


async def test_workers_ignore_the_terminals_signals(tmp_path: Path) -> None:
    """The terminal sends SIGINT and SIGHUP to the whole process group, but only the parent may act on them."""
    async with daemon(write_config(tmp_path, "mailer"), "--workers", "2") as running:
        client = await both_run(running)
        before = await worker_pids(client)
        for pid in before.values():
            os.kill(pid, signal.SIGINT)
            os.kill(pid, signal.SIGHUP)
        await client.post("/api/v1/groups/mailer/pause")  # the workers respond, so they have received the signals
        assert await worker_pids(client) == before
        assert not running.events("worker.died")


async def test_workers_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    """A killed parent must not leave workers that continue to consume."""
    async with daemon(write_config(tmp_path, "mailer"), "--workers", "2") as running:
        pids = await worker_pids(await both_run(running))
        running.send(signal.SIGKILL)
        assert await running.exit_code() == -signal.SIGKILL
        await eventually(lambda: all(gone(pid) for pid in pids.values()), "the workers end", 60)
        assert len(running.events("worker.parent_gone")) == 2


async def test_a_reload_reaches_all_workers(tmp_path: Path) -> None:
    """The processes stay the same, and their groups change."""
    async with daemon(write_config(tmp_path, "mailer", "audit"), "--workers", "2") as running:
        client = await both_run(running)
        before = await worker_pids(client)
        write_config(tmp_path, "mailer", "shipping")
        answer = await client.post("/api/v1/reload")
        assert answer.json()["started"] == ["shipping"]
        assert await worker_pids(client) == before
        names = {group["name"] for group in (await client.get("/api/v1/status")).json()["groups"]}
        assert names == {"mailer", "shipping"}
        assert {line["worker"] for line in running.events("group.left")} == {1, 2}


async def test_a_reload_is_tried_in_a_fresh_worker_first(tmp_path: Path) -> None:
    """Problems that only a worker can find are reported before any worker changes."""
    config = write_config(tmp_path, "mailer")
    environment = plug_in(config, FRAGILE, f"{{switch: {tmp_path / 'switch'}}}")
    async with daemon(config, "--workers", "2", environment=environment) as running:
        client = await both_run(running)
        before = await worker_pids(client)
        (tmp_path / "switch").touch()
        config.write_text(config.read_text() + "    pull_batch_size: 8\n")
        answer = await client.post("/api/v1/reload")
        assert answer.status_code == 500
        assert "the switch is set" in answer.json()["problems"][0]
        assert await worker_pids(client) == before
        assert not running.events("group.left")


async def test_a_problem_that_only_a_worker_finds_is_a_config_error_at_the_start(tmp_path: Path) -> None:
    """The exit code is 78, and no worker starts."""
    (tmp_path / "switch").touch()
    config = write_config(tmp_path, "mailer")
    environment = plug_in(config, FRAGILE, f"{{switch: {tmp_path / 'switch'}}}")
    async with daemon(config, "--workers", "2", environment=environment) as running:
        assert await running.exit_code() == ExitCode.CONFIG
        assert "the switch is set" in "".join(running.text)
        assert not running.events("worker.started")


async def test_a_second_signal_forces_the_workers_to_stop(tmp_path: Path) -> None:
    config = write_config(tmp_path, "mailer")
    async with daemon(config, "--workers", "2", environment=plug_in(config, NEVER_STOPS)) as running:
        await both_run(running)
        running.send(signal.SIGINT)
        await running.event("signal.received")
        running.send(signal.SIGINT)
        assert await running.exit_code() == 128 + signal.SIGINT


async def test_a_refusal_by_servers_is_logged_once_for_all_workers(tmp_path: Path) -> None:
    """A new reason after a reload is logged at once."""

    def write(ca_file: Path) -> Path:
        tls = f'client: {{tls: {{enabled: true, ca_file: "{ca_file}"}}}}'
        path = write_config(tmp_path, "mailer", extra=tls)
        path.write_text(path.read_text().replace("127.0.0.1:1", f"127.0.0.1:{port}"))
        return path

    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", ssl=server_context(SERVER_EXPIRED))
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with daemon(write(CA), "--workers", "2") as running:
            client = await both_run(running)
            for number, reason, ca_file in (1, "has expired", CA), (2, "no trusted authority signed", OTHER_CA):
                write(ca_file)
                if number > 1:
                    await client.post("/api/v1/reload")
                line = await running.event("access.refused", number)
                assert reason in line["reason"]
                assert "worker" not in line
                await refused_in_all(client, reason)
                assert len(running.events("access.refused")) == number


async def refused_in_all(client: httpx.AsyncClient, reason: str) -> None:
    """Wait until both workers are unready for this reason."""

    async def are_refused() -> bool:
        return (await client.get("/readyz")).text.count(reason) == 2

    await eventually(are_refused, f"each of two workers is unready for {reason}", 60)


async def test_log_status_and_metrics_show_which_worker_does_not_respond(tmp_path: Path) -> None:
    """Once the silence is known, requests do not wait for the worker."""
    async with daemon(write_config(tmp_path, "mailer"), "--workers", "2") as running:
        client = await both_run(running)
        pids = await worker_pids(client)
        before = (await client.get("/api/v1/status")).json()["problems"]  # there is no name server
        os.kill(pids[2], signal.SIGSTOP)
        try:
            document = (await client.get("/api/v1/status")).json()
            silent = await running.event("worker.silent")
            metrics = (await client.get("/metrics")).text
            loop = asyncio.get_running_loop()
            begin = loop.time()
            for _ in range(20):
                await client.get("/readyz")
            took_seconds = loop.time() - begin
        finally:
            os.kill(pids[2], signal.SIGCONT)
        answers = await running.event("worker.answers")
        assert 'rmqd_worker_up{worker="2"} 1.0' in (await client.get("/metrics")).text

    assert {*document["problems"]} - {*before} == {f"worker 2 (pid {pids[2]}) does not respond"}
    assert [worker["worker"] for worker in document["workers"]] == [1, 2]
    assert (silent["worker"], answers["worker"]) == (2, 2)
    assert 'rmqd_worker_up{worker="1"} 1.0' in metrics
    assert 'rmqd_worker_up{worker="2"} 0.0' in metrics
    assert took_seconds < 20, "the requests do not wait 2 s each"
    assert f"  worker 2 (pid {pids[2]}) does not respond" in status_lines(document)
