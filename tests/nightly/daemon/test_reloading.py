"""`rmqd run --reload` and `rmqd restart`: a real daemon whose handler is edited while messages arrive."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from rmqd.errors import ExitCode
from rmqd.testing import RocketMQ
from tests.cli.in_process import rmqd
from tests.daemon.daemon_process import DaemonProcess, daemon, plug_in, write_config
from tests.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]

CONFIG = """
nameserver: {nameserver}
state_dir: {folder}/state
http: {{listen: "127.0.0.1:0"}}
log: {{format: json}}
groups:
  edited:
    subscriptions: {{orders: "*"}}
    consume_from_where: first_offset
    handler: {{plugin: "shop.edited:handle"}}
  other:
    subscriptions: {{orders: "*"}}
    handler: {{plugin: log}}
"""
HANDLER = """
import asyncio
from pathlib import Path
from shop.version import VERSION

async def handle(batch):
    folder = Path({folder!r})
    with (folder / "seen").open("a") as seen:
        seen.write(f"{{VERSION}} has {{batch[0].keys}}\\n")
    while batch[0].keys == "held" and not (folder / "gate").exists():
        await asyncio.sleep(0.01)
    with (folder / "seen").open("a") as seen:
        seen.write(f"{{VERSION}} did {{batch[0].keys}}\\n")
"""


async def test_edits_are_applied_without_lost_or_repeated_messages(tmp_path: Path) -> None:
    """An imported module is edited three times: during a call, with a syntax error, and correctly again."""
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "edited.py").write_text(HANDLER.format(folder=str(tmp_path)))
    version, seen = shop / "version.py", tmp_path / "seen"
    version.write_text("VERSION = 1\n")
    seen.touch()
    with RocketMQ() as rocketmq:
        await asyncio.to_thread(rocketmq.create_topic, "orders", 2)
        config = tmp_path / "rmqd.yaml"
        config.write_text(CONFIG.format(nameserver=rocketmq.nameserver, folder=tmp_path))

        async def send(keys: str) -> None:
            await asyncio.to_thread(rocketmq.send, "orders", "{}", keys)

        async def has_seen(line: str) -> None:
            await eventually(lambda: line in seen.read_text().splitlines(), line, 60)

        async with daemon(config, "--reload", environment={"PYTHONPATH": str(tmp_path)}) as running:
            client = await running.started()
            await send("held")
            await has_seen("1 has held")
            version.write_text("VERSION = 2\n")  # same size, and within the same second

            async def is_draining() -> bool:
                groups = (await client.get("/api/v1/status")).json()["groups"]
                return str(groups[0]["state"]) == "draining"

            await eventually(is_draining, "the old code ends its call", 60)
            (tmp_path / "gate").touch()
            await send("second")
            await has_seen("2 did second")

            version.write_text("VERSION = \n")
            refused = await running.event("handler.reload_refused")
            assert (refused["group"], "invalid syntax" in str(refused["problems"])) == ("edited", True)
            groups = {group["name"]: group for group in (await client.get("/api/v1/status")).json()["groups"]}
            assert (groups["edited"]["paused"], groups["other"]["paused"]) == (True, False)
            await send("third")
            version.write_text("VERSION = 3\n")
            await has_seen("3 did third")

            assert {line["group"] for line in running.events("handler.reloaded")} == {"edited"}
            running.send(signal.SIGTERM)
            assert await running.exit_code() == ExitCode.OK
        committed = await asyncio.to_thread(rocketmq.offsets, "edited", "orders")
    assert seen.read_text().splitlines() == [
        "1 has held", "1 did held", "2 has second", "2 did second", "3 has third", "3 did third",
    ]  # fmt: skip
    assert sum(committed.values()) == 3
    assert [line["files"] for line in running.events("handler.reloaded") if "files" in line] == [[str(version)]] * 2


CLASS = "class Handler:\n    def handle(self, batch): pass\n"
PLAIN = "async def handle(batch):\n    pass\n"
BROKEN = "async def handle(:\n"
ADDED = """
  added:
    subscriptions: {orders: "*"}
    handler: {plugin: "shop.edited:handle"}
"""


async def test_a_new_configuration_with_broken_code_is_applied_or_changes_nothing(tmp_path: Path) -> None:
    """Only changes that need the broken code are refused. An operator's pause is kept."""
    edited = tmp_path / "shop" / "edited.py"
    edited.parent.mkdir()
    edited.write_text(PLAIN)
    config = tmp_path / "rmqd.yaml"
    with RocketMQ() as rocketmq:
        await asyncio.to_thread(rocketmq.create_topic, "orders", 2)
        both = CONFIG.format(nameserver=rocketmq.nameserver, folder=tmp_path)
        alone = both.partition("  other:")[0]
        config.write_text(both)
        async with daemon(config, "--reload", environment={"PYTHONPATH": str(tmp_path)}) as running:
            client = await running.started()

            async def reloaded(text: str, event: str) -> None:
                before = len(running.events(event))
                config.write_text(text)
                running.send(signal.SIGHUP)
                await eventually(lambda: len(running.events(event)) > before, event, 60)

            edited.write_text(BROKEN)
            await running.event("handler.reload_refused")
            assert await _paused(client) == {"edited": True, "other": False}
            await reloaded(alone + ADDED, "config.reload_refused")
            assert await _paused(client) == {"edited": True, "other": False}, "the groups are unchanged"
            await reloaded(alone, "config.reloaded")
            assert await _paused(client) == {"edited": True}

            assert (await client.post("/api/v1/groups/edited/pause")).is_success
            edited.write_text(PLAIN)
            await eventually(lambda: _edits(running) == 1, "the mended code runs", 60)
            assert await _paused(client) == {"edited": True}, "the operator's pause is kept"

            config.write_text(both)
            running.send(signal.SIGHUP)
            await eventually(lambda: len(running.events("signal.received")) == 3, "the third signal", 60)
            edited.write_text(f"{PLAIN}# an edit while the configuration is applied\n")
            await eventually(lambda: _edits(running) == 2, "the edit is taken over", 60)
            await eventually(lambda: len(running.events("config.reloaded")) == 2, "the configuration is applied", 60)
            running.send(signal.SIGTERM)
            assert await running.exit_code() == ExitCode.OK


def _edits(running: DaemonProcess) -> int:
    return sum("files" in line for line in running.events("handler.reloaded"))


async def _paused(client: httpx.AsyncClient) -> dict[str, bool]:
    groups = (await client.get("/api/v1/status")).json()["groups"]
    return {group["name"]: group["paused"] for group in groups}


async def test_a_restart_keeps_the_old_code_if_the_new_code_cannot_be_loaded(tmp_path: Path) -> None:
    """The response has the reason. Reloads change the group in its new process. If killed, the process is replaced."""
    config = write_config(tmp_path, "edited", "other")
    environment = plug_in(config, CLASS)
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

        edited.write_text(f"{CLASS}# mended\n")
        done = await asyncio.to_thread(rmqd, "restart", "edited", "--http", str(client.base_url))
        assert done.out == "edited runs its new code, in a process of its own; no other group was touched\n"
        process = (await running.event("handler.reloaded"))["pid"]
        await client.post("/api/v1/groups/edited/pause")
        config.write_text(config.read_text().replace("handler: {", "handler: {concurrency: 7, ", 1))
        assert (await client.post("/api/v1/reload")).json()["updated"] == ["edited"]

        async def group() -> dict[str, object]:
            return dict((await client.get("/api/v1/status")).json()["groups"][0])

        await eventually(lambda: _has(group, concurrency=7, paused=True), "the process has applied the configuration")
        os.kill(process, signal.SIGKILL)
        assert "was killed by SIGKILL" in (await running.event("group.failed"))["error"]
        assert (await running.event("handler.reloaded", 2))["pid"] != process
        await eventually(lambda: _has(group, concurrency=7, paused=True), "its successor has the configuration too")
        running.send(signal.SIGTERM)
        assert await running.exit_code() == ExitCode.OK
        assert {line["group"] for line in running.events("group.restarted")} == {"edited"}


async def _has(group: Callable[[], Awaitable[dict[str, object]]], **wanted: object) -> bool:
    return wanted.items() <= (await group()).items()
