"""The folder of local state: what is refused before anything runs, and by whom it is held.

The core of these tests is in tests/daemon/test_state_dir.py.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rmqd.daemon.systemd import prepare_state_dir
from rmqd.errors import ConfigError, ExitCode
from tests.consumer.offsets.disks import small_disk
from tests.daemon.daemon_process import daemon, write_config
from tests.daemon.test_state_dir import BROADCASTING, load
from tests.daemon.workers.test_workers import both_run


@pytest.mark.process
def test_a_read_only_one_is_refused(tmp_path: Path) -> None:
    config = load(write_config(tmp_path, "mailer", more=BROADCASTING))
    with small_disk(tmp_path / "state") as disk:
        prepare_state_dir(config)
        disk.read_only(True)
        with pytest.raises(ConfigError, match="cannot be written: Read-only file system"):
            prepare_state_dir(config)


@pytest.mark.process
async def test_a_second_daemon_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    """One line, exit code 1: a service manager may try again, as the first may be about to end."""
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
async def test_groups_that_share_no_file_do_not_keep_each_other_out(tmp_path: Path) -> None:
    async with daemon(write_config(tmp_path, "mailer")) as first:
        await first.event("daemon.started")
        async with daemon(tmp_path / "rmqd.yaml") as second:
            await second.event("daemon.started")


@pytest.mark.process
async def test_with_workers_the_first_one_has_it(tmp_path: Path) -> None:
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
