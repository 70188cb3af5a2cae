"""The daemon as a process: signals, exit codes, reloads. It must work although no cluster is reachable.

The core of these tests is in tests/daemon/test_daemon.py.
"""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from rmqd.errors import ExitCode
from tests.daemon.daemon_here import daemon_here
from tests.daemon.daemon_process import daemon, plug_in, write_config
from tests.waiting import eventually


@pytest.mark.process
async def test_a_handler_that_cancels_every_task_ends_the_daemon_with_an_error(tmp_path: Path) -> None:
    """The daemon could not continue, and a service manager restarts it."""
    config = write_config(tmp_path, "mailer")
    environment = plug_in(
        config,
        "import asyncio\n"
        "class Handler:\n"
        "    async def start(self):\n"
        "        for task in asyncio.all_tasks():\n"
        "            task.cancel()\n"
        "    async def handle(self, batch): pass\n",
    )
    async with daemon(config, environment=environment) as running:
        assert await running.exit_code() == ExitCode.FAILURE
        assert "cancelled the daemon's tasks" in running.events("daemon.failed")[0]["error"]


async def test_an_unknown_group_of_the_command_line_is_refused(tmp_path: Path) -> None:
    """The error lists the known groups."""
    async with daemon_here(write_config(tmp_path, "mailer"), groups=("mialer",)) as running:
        assert await running.exit_code() == ExitCode.CONFIG
        assert "mialer" in running.text[0]
        assert "mailer" in running.text[0]


async def test_a_stop_does_not_wait_for_a_running_reload(tmp_path: Path) -> None:
    """The daemon drains and exits with 0. The new configuration is not applied."""
    (tmp_path / "dawdling.py").write_text(
        "import pathlib, time\n"
        f"pathlib.Path('{tmp_path}/importing').touch()\n"
        f"while not pathlib.Path('{tmp_path}/go').exists(): time.sleep(0.01)\n"
        "def handle(batch): pass\n"
    )
    path = write_config(tmp_path, "mailer")
    async with daemon_here(path, environment={"PYTHONPATH": str(tmp_path)}) as running:
        client = await running.started()
        assert (await client.get("/livez")).status_code == 200  # the server runs, so it closes the socket at the end
        path.write_text(path.read_text().replace("plugin: log", "plugin: 'dawdling:handle'"))
        running.send(signal.SIGHUP)
        await eventually((tmp_path / "importing").exists, "the reload is running")
        running.send(signal.SIGTERM)
        await running.event("group.left")
        await eventually(lambda: not is_listening(client.base_url.port), "the HTTP server has ended")
        (tmp_path / "go").touch()
        assert await running.exit_code() == ExitCode.OK
        assert not running.events("daemon.failed")
        assert not running.events("config.reloaded")


def is_listening(port: int | None) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port or 0)) == 0


@pytest.mark.parametrize(
    ("extra", "named"), [("http: {listen: '127.0.0.1:1234'}", "http.listen"), ("state_dir: /elsewhere", "state_dir")]
)
async def test_a_reload_refuses_changes_of_fixed_keys_by_name(tmp_path: Path, extra: str, named: str) -> None:
    """The problem says to restart the daemon."""
    path = write_config(tmp_path, "mailer")
    async with daemon_here(path) as running:
        client = await running.started()
        key = named.split(".")[0]
        kept = [line for line in path.read_text().splitlines() if not line.startswith(f"{key}:")]
        path.write_text("\n".join([*kept, extra]))
        answer = await client.post("/api/v1/reload")
        assert answer.status_code == 500
        (problem,) = answer.json()["problems"]
        assert problem.startswith(f"{named}: ")
        assert "restart" in problem


async def test_standard_logging_of_handlers_is_in_the_daemons_log(tmp_path: Path) -> None:
    """All lines have one format."""
    config = write_config(tmp_path, "mailer")
    environment = plug_in(
        config,
        "import logging\n"
        "class Handler:\n"
        "    def start(self): logging.getLogger('chatty').warning('hello %s', 'there')\n"
        "    def handle(self, batch): pass\n",
    )
    async with daemon_here(config, environment=environment) as running:
        line = await running.event("hello there")
        assert (line["logger"], line["level"]) == ("chatty", "warning")
