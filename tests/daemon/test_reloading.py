"""`rmqd run --reload`: a real daemon whose handler is edited."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rmqd.cli.daemon_commands import status_lines
from rmqd.errors import ExitCode
from tests.daemon.daemon_process import daemon, plug_in, write_config
from tests.waiting import eventually

HANDLER = "class Handler:\n    def handle(self, batch): pass\n"


@pytest.mark.process
async def test_an_edit_is_loaded_and_a_broken_edit_pauses_the_group(tmp_path: Path) -> None:
    """tests/nightly/daemon/test_reloading.py edits while messages arrive."""
    config = write_config(tmp_path, "edited")
    environment = plug_in(config, HANDLER)
    edited = tmp_path / "plugged_in.py"
    async with daemon(config, "--reload", environment=environment) as running:
        client = await running.started()
        edited.write_text("class Handler:\n")
        refused = await running.event("handler.reload_refused")
        assert refused["group"] == "edited"
        held = (await client.get("/api/v1/status")).json()
        assert [group["paused"] for group in held["groups"]] == [True]
        assert f"group edited is paused until its changed code can be loaded: {config}:" in status_lines(held)[1]
        edited.write_text(f"{HANDLER}# mended\n")
        lines = [await running.event("handler.reloaded", count) for count in (1, 2)]
        assert [line["files"] for line in lines if "files" in line] == [[str(edited)]]
        assert {line["logger"] for line in lines} == {"rmqd.daemon.daemon", "rmqd.daemon.workers.worker_group"}
        assert [group["paused"] for group in (await client.get("/api/v1/status")).json()["groups"]] == [False]

        edited.write_text("class Handler:\n")

        async def is_paused() -> bool:
            return bool((await client.get("/api/v1/status")).json()["groups"][0]["paused"])

        await eventually(is_paused, "the broken code pauses the group again")
        config.write_text(config.read_text().replace("'plugged_in:Handler'", "log"))
        running.send(signal.SIGHUP)
        assert (await running.event("config.reloaded"))["restarted"] == ["edited"]
        assert not await is_paused(), "the group is not paused if its handler can be loaded"
        problems = (await client.get("/api/v1/status")).json()["problems"]
        assert [one for one in problems if "name server" not in one] == []  # the configured name server does not exist
        running.send(signal.SIGTERM)
        assert await running.exit_code() == ExitCode.OK


@pytest.mark.process
async def test_an_edit_is_noticed_after_a_refused_reload(tmp_path: Path) -> None:
    """The refused configuration has another group. The running group's files are still watched."""
    config = write_config(tmp_path, "edited")
    broken = "class Broken:\n    def __init__(self): raise OSError\n    def handle(self, batch): pass\n"
    environment = plug_in(config, HANDLER + broken)
    async with daemon(config, "--reload", environment=environment) as running:
        await running.started()
        accepted = config.read_text()
        config.write_text(accepted.replace("edited:", "renamed:").replace(":Handler", ":Broken"))
        running.send(signal.SIGHUP)
        assert "OSError" in str((await running.event("config.reload_refused"))["problems"])
        (tmp_path / "plugged_in.py").write_text(f"{HANDLER}# edited\n")
        assert (await running.event("handler.reloaded"))["group"] == "edited"
