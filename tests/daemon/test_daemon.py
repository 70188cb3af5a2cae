"""Signals, exit codes and reloads of a daemon that reaches no cluster."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from rmqd.errors import ExitCode
from tests.daemon.daemon_here import daemon_here
from tests.daemon.daemon_process import NEVER_STOPS, daemon, plug_in, write_config
from tests.waiting import eventually


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_signal_drains_and_exits_with_zero(tmp_path: Path, number: signal.Signals) -> None:
    async with daemon_here(write_config(tmp_path, "mailer")) as running:
        await running.started()
        running.send(number)
        assert await running.exit_code() == ExitCode.OK
        assert running.events("signal.received")[0]["action"] == "drain"
        assert running.events("group.left")


async def test_without_a_name_server_the_daemon_is_alive_but_not_ready(tmp_path: Path) -> None:
    """The daemon keeps running. `/readyz` and the log report the reason."""
    async with daemon_here(write_config(tmp_path, "mailer", "audit")) as running:
        client = await running.started()
        assert (await client.get("/livez")).status_code == 200

        async def told() -> httpx.Response | None:
            ready = await client.get("/readyz")
            return ready if ready.text.count("no name server answered") == 2 else None  # else they are starting

        ready = await eventually(told, "both groups report why they are not ready")
        assert ready.status_code == 503
        assert "[-] group mailer: " in ready.text
        assert "[-] group audit: " in ready.text
        assert {line["check"] for line in running.events("daemon.not_ready")} == {"group mailer", "group audit"}
        assert "no name server answered" in "".join(running.text)


async def test_a_taken_port_is_an_error_before_any_group_starts(tmp_path: Path) -> None:
    """One log line, exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        async with daemon_here(write_config(tmp_path, "mailer", listen=listen)) as running:
            assert await running.exit_code() == ExitCode.FAILURE
            (line,) = running.log
            assert line["event"] == "http.listen_failed"
            assert listen in line["error"]
            assert "already in use" in line["error"]


async def test_a_bad_config_exits_before_connecting_with_all_problems(tmp_path: Path) -> None:
    """Exit code 78, one line per problem, nothing else."""
    config = write_config(tmp_path, "mailer", "audit", more="pull_batch_size: many")
    async with daemon_here(config) as running:
        assert await running.exit_code() == ExitCode.CONFIG
        assert [line.split(": ")[1] for line in running.text] == [
            "groups.mailer.pull_batch_size",
            "groups.audit.pull_batch_size",
        ]


async def test_only_the_named_groups_run(tmp_path: Path) -> None:
    """`--group` selects the groups."""
    async with daemon_here(write_config(tmp_path, "mailer", "audit"), groups=("audit",)) as running:
        client = await running.started()
        status = (await client.get("/api/v1/status")).json()
        assert [group["name"] for group in status["groups"]] == ["audit"]


async def test_sighup_applies_a_good_config(tmp_path: Path) -> None:
    """Unchanged groups are not restarted."""
    async with daemon_here(write_config(tmp_path, "mailer", "audit")) as running:
        client = await running.started()
        write_config(tmp_path, "mailer", "shipping")
        running.send(signal.SIGHUP)
        report = await running.event("config.reloaded")
        assert (report["unchanged"], report["started"], report["stopped"]) == (["mailer"], ["shipping"], ["audit"])
        status = (await client.get("/api/v1/status")).json()
        assert [group["name"] for group in status["groups"]] == ["mailer", "shipping"]
        assert [line["group"] for line in running.events("group.left")] == ["audit"]


async def test_sighup_with_a_bad_config_keeps_the_old_one(tmp_path: Path) -> None:
    """All groups keep running. The log and a metric report the failure."""
    async with daemon_here(write_config(tmp_path, "mailer")) as running:
        client = await running.started()
        write_config(tmp_path, "mailer", "audit", more="pull_batch_size: many")
        running.send(signal.SIGHUP)
        refused = await running.event("config.reload_refused")
        assert len(refused["problems"]) == 2
        assert "rmqd.yaml:" in refused["problems"][0]
        status = (await client.get("/api/v1/status")).json()
        assert [group["name"] for group in status["groups"]] == ["mailer"]
        assert not running.events("group.left")
        assert "rmqd_config_last_reload_successful 0.0" in (await client.get("/metrics")).text
        write_config(tmp_path, "mailer")
        running.send(signal.SIGHUP)
        await running.event("config.reloaded")
        assert "rmqd_config_last_reload_successful 1.0" in (await client.get("/metrics")).text


async def test_a_failing_group_does_not_stop_the_others(tmp_path: Path) -> None:
    """The group is shown as failed and is restarted. The daemon keeps running."""
    config = write_config(tmp_path, "mailer", "audit")
    environment = plug_in(
        config,
        "class Handler:\n    def start(self): raise OSError('no database')\n    def handle(self, batch): pass\n",
    )
    async with daemon_here(config, environment=environment) as running:
        client = await running.started()
        await running.event("group.restarted")

        async def shown() -> dict[str, dict[str, Any]] | None:
            groups = {group["name"]: group for group in (await client.get("/api/v1/status")).json()["groups"]}
            return groups if groups["mailer"]["state"] == "failed" else None  # starting again

        groups = await eventually(shown, "it is shown as failed", 10)
        assert "no database" in groups["mailer"]["failure"]
        assert groups["audit"]["state"] == "running"
        assert (
            'rmqd_group_state{engine="local",group="mailer",state="failed"} 1.0' in (await client.get("/metrics")).text
        )
        running.send(signal.SIGTERM)
        assert await running.exit_code() == ExitCode.OK


@pytest.mark.process
async def test_sighup_during_imports_is_kept_and_a_hung_thread_does_not_delay_the_exit(
    tmp_path: Path,
) -> None:
    """The handler itself started the thread."""
    config = write_config(tmp_path, "mailer")
    environment = plug_in(
        config,
        "import os, signal, threading\n"
        "os.kill(os.getpid(), signal.SIGHUP)\n"
        "class Handler:\n"
        "    def start(self): threading.Thread(target=threading.Event().wait).start()\n"
        "    def handle(self, batch): pass\n",
    )
    async with daemon(config, environment=environment) as running:
        await running.started()
        assert (await running.event("config.reloaded"))["unchanged"] == ["mailer"]
        running.send(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await running.exit_code() == ExitCode.OK


async def test_a_second_signal_ends_the_drain_and_sets_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is 128 plus the second signal's number."""
    config = write_config(tmp_path, "mailer")
    monkeypatch.setattr("rmqd.daemon.groups.supervisor.HURRY_GRACE_SECONDS", 0.1)
    async with daemon_here(config, environment=plug_in(config, NEVER_STOPS)) as running:
        await running.started()
        running.send(signal.SIGTERM)
        await running.event("signal.received")
        running.send(signal.SIGTERM)
        assert await running.exit_code() == 128 + signal.SIGTERM
        assert running.events("signal.received")[1]["action"] == "hurry"


async def test_systemd_is_notified_of_start_reload_and_stop(tmp_path: Path) -> None:
    """READY after the start, RELOADING and READY around a reload, STOPPING at the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        loop = asyncio.get_running_loop()

        async def heard() -> str:
            async with asyncio.timeout(20):
                while True:
                    first = (await loop.sock_recv(manager, 4096)).decode().split("\n")[0]
                    if first != "WATCHDOG=1":
                        return first

        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        async with daemon_here(write_config(tmp_path, "mailer"), environment=environment) as running:
            assert await heard() == "READY=1"
            running.send(signal.SIGHUP)
            assert [await heard(), await heard()] == ["RELOADING=1", "READY=1"]
            running.send(signal.SIGTERM)
            assert await heard() == "STOPPING=1"
            assert await running.exit_code() == ExitCode.OK


@pytest.mark.process
def test_the_daemons_modules_import_neither_http_server_nor_prometheus() -> None:
    """They are imported after the groups start, so that the first message is handled earlier."""
    modules = "rmqd.cli.app, rmqd.daemon.daemon, rmqd.daemon.workers.worker_main, rmqd.config.load"
    modules += ", rmqd.consumer.push_consumer"
    late = "{'rich', 'starlette', 'uvicorn', 'prometheus_client', 'urllib.request'} & set(sys.modules)"
    script = f"import sys; import {modules}; print(sorted({late}))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
