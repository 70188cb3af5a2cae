"""`rmqd run --reload` and `rmqd restart`: a real daemon whose handler is edited."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rmqd.errors import ExitCode
from tests.daemon.daemon_process import daemon, plug_in, write_config
from tests.waiting import eventually

HANDLER = "class Handler:\n    def handle(self, batch): pass\n"


@pytest.mark.process
async def test_an_edit_is_taken_over_and_a_broken_one_pauses_the_group(tmp_path: Path) -> None:
    """tests/nightly/daemon/test_reloading.py edits while messages come."""
    config = write_config(tmp_path, "edited")
    environment = plug_in(config, HANDLER)
    edited = tmp_path / "plugged_in.py"
    async with daemon(config, "--reload", environment=environment) as running:
        client = await running.started()
        edited.write_text("class Handler:\n")
        refused = await running.event("handler.reload_refused")
        assert refused["group"] == "edited"
        assert [group["paused"] for group in (await client.get("/api/v1/status")).json()["groups"]] == [True]
        edited.write_text(f"{HANDLER}# mended\n")
        assert (await running.event("handler.reloaded"))["files"] == [str(edited)]
        await running.event("worker.started", 2)
        running.send(signal.SIGTERM)
        assert await running.exit_code() == ExitCode.OK


@pytest.mark.process
async def test_a_restart_keeps_the_old_code_if_the_new_one_cannot_be_loaded(tmp_path: Path) -> None:
    """The answer says why. A reload changes the group in its process; if that is killed, another one follows."""
    config = write_config(tmp_path, "edited", "other")
    environment = plug_in(config, HANDLER)
    edited = tmp_path / "plugged_in.py"
    async with daemon(config, environment=environment) as running:
        client = await running.started()
        edited.write_text("import no_such_module\n")
        refused = await client.post("/api/v1/groups/edited/restart")
        assert refused.status_code == 500
        assert refused.json()["error"] == "the new code cannot be loaded; the old code continues"
        assert "No module named 'no_such_module'" in refused.json()["problems"][0]
        assert running.events("group.left") == []
        assert (await client.post("/api/v1/groups/nothing/restart")).status_code == 404

        edited.write_text(f"{HANDLER}# mended\n")
        report = (await client.post("/api/v1/groups/edited/restart")).json()
        assert (report["result"], report["restarted"]) == ("applied", ["edited"])
        process = (await running.event("handler.reloaded"))["pid"]
        await client.post("/api/v1/groups/edited/pause")
        config.write_text(config.read_text().replace("handler: {", "handler: {concurrency: 7, ", 1))
        assert (await client.post("/api/v1/reload")).json()["updated"] == ["edited"]

        async def group() -> dict[str, object]:
            return dict((await client.get("/api/v1/status")).json()["groups"][0])

        await eventually(lambda: _has(group, concurrency=7, paused=True), "the process has applied it")
        os.kill(process, signal.SIGKILL)
        assert "was killed by SIGKILL" in (await running.event("group.failed"))["error"]
        assert (await running.event("handler.reloaded", 2))["pid"] != process
        await eventually(lambda: _has(group, concurrency=7, paused=True), "so has its successor")
        running.send(signal.SIGTERM)
        assert await running.exit_code() == ExitCode.OK
        assert {line["group"] for line in running.events("group.restarted")} == {"edited"}


async def _has(group: Callable[[], Awaitable[dict[str, object]]], **wanted: object) -> bool:
    return wanted.items() <= (await group()).items()
