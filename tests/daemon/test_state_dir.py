"""The folder of local state: errors before the start, and its lock."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rmqd.config.load import load_config
from rmqd.config.model.root_model import RootConfig
from rmqd.daemon.systemd import prepare_state_dir
from rmqd.errors import ConfigError, ExitCode
from tests.daemon.daemon_here import daemon_here
from tests.daemon.daemon_process import daemon, write_config

BROADCASTING = "message_model: broadcasting"


def load(path: Path) -> RootConfig:
    return load_config(path)


@pytest.fixture
def no_room_for_it(tmp_path: Path) -> str:
    """Create a file with the name of state_dir. Returns the reason why the folder cannot be created."""
    (tmp_path / "state").touch()
    return "Not a directory"


def test_without_broadcasting_groups_no_state_dir_is_created(tmp_path: Path) -> None:
    prepare_state_dir(load(write_config(tmp_path, "mailer")))

    assert not (tmp_path / "state").exists()


def test_a_state_dir_that_cannot_be_created_is_reported_with_its_place(tmp_path: Path, no_room_for_it: str) -> None:
    config = load(write_config(tmp_path, "mailer", more=BROADCASTING))

    with pytest.raises(ConfigError) as caught:
        prepare_state_dir(config)

    assert str(caught.value) == (
        f"{tmp_path}/rmqd.yaml:10:20: groups.mailer.message_model: "
        f"{tmp_path}/state/offsets, the folder of broadcasting offsets, cannot be written: {no_room_for_it}; "
        "set a writable state_dir"
    )


async def test_the_daemon_exits_if_its_state_dir_cannot_be_created(tmp_path: Path, no_room_for_it: str) -> None:
    async with daemon_here(write_config(tmp_path, "mailer", more=BROADCASTING)) as running:
        assert await running.exit_code() == ExitCode.CONFIG
        (line,) = running.text
        assert no_room_for_it in line


@pytest.mark.process
async def test_a_second_daemon_is_refused_also_after_a_reload(tmp_path: Path) -> None:
    """It logs one line and exits with 1. The first daemon keeps the lock while its group restarts."""
    config = write_config(tmp_path, "mailer", more=BROADCASTING)
    async with daemon_here(config) as first:
        await first.event("daemon.started")
        write_config(tmp_path, "mailer", more=f"{BROADCASTING}\n    consume_message_batch_max_size: 7")
        first.send(signal.SIGHUP)
        await first.event("config.reloaded")
        async with daemon(config) as second:
            assert await second.exit_code() == ExitCode.FAILURE
            (line,) = second.log
    assert (line["event"], line["level"]) == ("state_dir.in_use", "error")
    assert f"{tmp_path}/state/offsets is in use by process {os.getpid()} on " in line["error"]
