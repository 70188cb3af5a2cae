"""The folder of local state: what is refused before anything runs, and by whom it is held."""

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
    """A file stands where the state_dir should be; why it cannot be made."""
    (tmp_path / "state").touch()
    return "Not a directory"


def test_without_broadcasting_groups_nothing_is_made(tmp_path: Path) -> None:
    prepare_state_dir(load(write_config(tmp_path, "mailer")))

    assert not (tmp_path / "state").exists()


def test_one_that_cannot_be_made_is_told_with_its_place(tmp_path: Path, no_room_for_it: str) -> None:
    config = load(write_config(tmp_path, "mailer", more=BROADCASTING))

    with pytest.raises(ConfigError) as caught:
        prepare_state_dir(config)

    assert str(caught.value) == (
        f"{tmp_path}/rmqd.yaml:10:20: groups.mailer.message_model: "
        f"{tmp_path}/state/offsets, the folder of broadcasting offsets, cannot be written: {no_room_for_it}; "
        "set a writable state_dir"
    )


async def test_the_daemon_exits_before_it_connects(tmp_path: Path, no_room_for_it: str) -> None:
    async with daemon_here(write_config(tmp_path, "mailer", more=BROADCASTING)) as running:
        assert await running.exit_code() == ExitCode.CONFIG
        (line,) = running.text
        assert no_room_for_it in line


@pytest.mark.process
async def test_a_second_daemon_is_refused_also_after_a_reload(tmp_path: Path) -> None:
    """With one line and exit code 1. The group drains and starts again, and keeps the lock."""
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
