"""The folder of local state: what is refused before anything runs, and by whom it is held."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rmqd.config.load import load_config
from rmqd.config.model.root_model import RootConfig
from rmqd.config.reading.config_source import exposed_secrets
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


def test_it_is_made_with_all_above_it_and_left_empty(tmp_path: Path) -> None:
    config = load(write_config(tmp_path, "mailer", "audit", more=BROADCASTING))
    prepare_state_dir(config)
    prepare_state_dir(config)

    assert list((tmp_path / "state").rglob("*")) == [tmp_path / "state" / "offsets"]


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


async def test_the_status_says_that_a_group_is_broadcasting(tmp_path: Path) -> None:
    """Else nobody knows why the brokers have no progress of it."""
    async with daemon_here(write_config(tmp_path, "mailer", more=BROADCASTING)) as running:
        client = await running.started()
        (group,) = (await client.get("/api/v1/status")).json()["groups"]
        assert group["message_model"] == "broadcasting"
        assert ">broadcasting</span>" in (await client.get("/")).text


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


async def test_a_reload_refuses_a_group_that_could_not_keep_its_offsets(tmp_path: Path, no_room_for_it: str) -> None:
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
def test_a_secret_that_everybody_can_read_is_told(tmp_path: Path, mode: int, text: str, said: bool) -> None:
    """With its place, and without itself."""
    path = tmp_path / "rmqd.yaml"
    path.write_text(f"nameserver: a:1\n{text}\n")
    path.chmod(mode)
    found = exposed_secrets(path)
    assert bool(found) == said
    for problem in found:
        assert str(problem).startswith(f"{path}:2:")
        assert "abc" not in str(problem)


async def test_a_daemon_says_which_of_its_secrets_everybody_can_read(tmp_path: Path) -> None:
    """It runs all the same."""
    path = write_config(tmp_path, "mailer", extra="client: {access_key: AK, secret_key: SK}\n")
    path.chmod(0o644)
    async with daemon_here(path) as running:
        assert "client.access_key" in (await running.event("config.exposed"))["problem"]
        running.send(signal.SIGTERM)
        assert await running.exit_code() == ExitCode.OK
