"""The folder of local state: errors before the start, and its lock.

The core of these tests is in tests/daemon/test_state_dir.py.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rmqd.config.reading.config_source import exposed_secrets
from rmqd.daemon.systemd import prepare_state_dir
from rmqd.errors import ConfigError, ExitCode
from tests.consumer.offsets.disks import small_disk
from tests.daemon.daemon_here import daemon_here
from tests.daemon.daemon_process import daemon, write_config
from tests.daemon.test_state_dir import BROADCASTING, load, no_room_for_it
from tests.daemon.workers.test_workers import both_run

__all__ = ["no_room_for_it"]


@pytest.mark.process
def test_a_read_only_state_dir_is_refused(tmp_path: Path) -> None:
    config = load(write_config(tmp_path, "mailer", more=BROADCASTING))
    with small_disk(tmp_path / "state") as disk:
        prepare_state_dir(config)
        disk.read_only(True)
        with pytest.raises(ConfigError, match="cannot be written: Read-only file system"):
            prepare_state_dir(config)


@pytest.mark.process
async def test_a_second_daemon_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    """The exit code is 1, so a service manager tries again. The first daemon may be about to end."""
    config = write_config(tmp_path, "mailer", more=BROADCASTING)
    async with daemon(config) as first:
        await first.event("daemon.started")
        async with daemon(config) as second:
            assert await second.exit_code() == ExitCode.FAILURE
            (line,) = second.log
            assert (line["event"], line["level"]) == ("state_dir.in_use", "error")
            assert f"{tmp_path}/state/offsets is in use by process {first.pid} on " in line["error"]
        first.send(signal.SIGKILL)
        await first.exit_code()
        async with daemon(config) as third:
            await third.event("daemon.started")


@pytest.mark.process
async def test_daemons_without_broadcasting_groups_may_share_a_state_dir(tmp_path: Path) -> None:
    async with daemon(write_config(tmp_path, "mailer")) as first:
        await first.event("daemon.started")
        async with daemon(tmp_path / "rmqd.yaml") as second:
            await second.event("daemon.started")


@pytest.mark.process
async def test_the_first_worker_holds_the_lock_of_the_state_dir(tmp_path: Path) -> None:
    config = write_config(tmp_path, "mailer", more=BROADCASTING)
    lock = tmp_path / "state" / "offsets" / "process.lock"
    async with daemon(config, "--workers", "2") as first:
        client = await both_run(first)
        workers = (await client.get("/api/v1/status")).json()["workers"]
        owner = next(worker["pid"] for worker in workers if worker["worker"] == 1)
        assert lock.read_text() == f"{owner} on {os.uname().nodename}\n"
        async with daemon(config, "--workers", "2") as second:
            assert await second.exit_code() == ExitCode.FAILURE
            assert f"in use by process {owner} on" in second.log[0]["error"]
        first.send(signal.SIGHUP)
        await first.event("config.reloaded")


def test_the_state_dir_is_created_with_its_parents_and_stays_empty(tmp_path: Path) -> None:
    config = load(write_config(tmp_path, "mailer", "audit", more=BROADCASTING))
    prepare_state_dir(config)
    prepare_state_dir(config)

    assert list((tmp_path / "state").rglob("*")) == [tmp_path / "state" / "offsets"]


async def test_the_status_shows_that_a_group_is_broadcasting(tmp_path: Path) -> None:
    """It explains why brokers have no progress of the group."""
    async with daemon_here(write_config(tmp_path, "mailer", more=BROADCASTING)) as running:
        client = await running.started()
        (group,) = (await client.get("/api/v1/status")).json()["groups"]
        assert group["message_model"] == "broadcasting"
        assert ">broadcasting</span>" in (await client.get("/")).text


async def test_a_reload_refuses_a_group_that_cannot_store_its_offsets(tmp_path: Path, no_room_for_it: str) -> None:
    async with daemon_here(write_config(tmp_path, "mailer")) as running:
        await running.event("daemon.started")
        write_config(tmp_path, "mailer", "audit", more=BROADCASTING)
        running.send(signal.SIGHUP)
        (problem,) = (await running.event("config.reload_refused"))["problems"]
        assert no_room_for_it in problem
        assert not running.events("group.left")


@pytest.mark.parametrize(
    ("mode", "text", "said"),
    [
        (0o644, "http: {token: abc}", True),
        (0o640, "http: {token: abc}", False),
        (0o644, "http: {token: '${TOKEN:-abc}'}", False),
        (0o644, "groups: {g: {subscriptions: {t: '*'}, handler: {plugin: log, options: {db_password: abc}}}}", True),
    ],
)
def test_a_secret_that_all_users_can_read_is_reported(tmp_path: Path, mode: int, text: str, said: bool) -> None:
    """The problem has the place of the secret, but not its value."""
    path = tmp_path / "rmqd.yaml"
    path.write_text(f"nameserver: a:1\n{text}\n")
    path.chmod(mode)
    found = exposed_secrets(path)
    assert bool(found) == said
    for problem in found:
        assert str(problem).startswith(f"{path}:2:")
        assert "abc" not in str(problem)


async def test_a_daemon_logs_which_secrets_all_users_can_read(tmp_path: Path) -> None:
    """The daemon runs anyway."""
    path = write_config(tmp_path, "mailer", extra="client: {access_key: AK, secret_key: SK}\n")
    path.chmod(0o644)
    async with daemon_here(path) as running:
        assert "client.access_key" in (await running.event("config.exposed"))["problem"]
        running.send(signal.SIGTERM)
        assert await running.exit_code() == ExitCode.OK
