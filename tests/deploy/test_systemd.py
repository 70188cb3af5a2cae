"""deploy/rmqd.service: systemd reads it without complaint, and its numbers fit the daemon's."""

from __future__ import annotations

import asyncio
import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rmqd.config.model.group import GroupConfig
from rmqd.config.model.quantities import parse_duration_seconds
from rmqd.exit_codes import ExitCode
from rmqd_handlers.exec import Exec
from tests.cli.command import rmqd
from tests.daemon.daemon_process import daemon, write_config
from tests.deploy.missing import require
from tests.rocketmq.spec import free_port

UNIT = Path(__file__).parent.parent.parent / "deploy" / "rmqd.service"
MOST_EXPOSURE = 2.0  # of 10; systemd calls what is below 2 "OK"


@pytest.fixture
def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser["Service"]


@pytest.mark.process
def test_systemd_has_nothing_to_say_against_it(tmp_path: Path) -> None:
    analyze = require("systemd-analyze", package="systemd")
    unit = tmp_path / "rmqd.service"
    # verify wants the program to be there; the folder's name in the unit is the installer's
    rmqd = Path(sys.executable).with_name("rmqd")
    unit.write_text(re.sub(r"^(Exec\w+)=\S+", rf"\1={rmqd}", UNIT.read_text(), flags=re.MULTILINE))

    done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.process
def test_the_sandbox_leaves_little() -> None:
    analyze = require("systemd-analyze", package="systemd")
    done = subprocess.run(
        [analyze, "security", "--offline=yes", str(UNIT)], capture_output=True, text=True, check=False
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd cannot judge a unit that is not running (that came with version 250)")

    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) < MOST_EXPOSURE


def test_a_stop_is_given_the_time_that_the_drain_takes(service: configparser.SectionProxy) -> None:
    drain = parse_duration_seconds(GroupConfig.model_fields["shutdown_timeout"].default)
    kill_after = parse_duration_seconds(Exec.Options.model_fields["kill_after"].default)

    assert float(service["TimeoutStopSec"]) > drain + kill_after
    assert service["KillMode"] == "mixed"


def test_it_is_told_when_the_daemon_is_ready_and_alive(service: configparser.SectionProxy) -> None:
    assert service["Type"] == "notify"
    assert float(service["WatchdogSec"]) > 0


def test_a_wrong_configuration_is_not_started_again(service: configparser.SectionProxy) -> None:
    assert service["Restart"] == "on-failure"
    assert set(service["RestartPreventExitStatus"].split()) == {str(int(ExitCode.USAGE)), str(int(ExitCode.CONFIG))}


@pytest.mark.process
async def test_a_reload_fails_where_the_configuration_is_wrong(
    service: configparser.SectionProxy, tmp_path: Path
) -> None:
    """`systemctl reload` waits for this command, and fails as it does."""
    program, *arguments = service["ExecReload"].split()
    assert program == service["ExecStart"].split()[0]
    config = write_config(tmp_path, "mailer", listen=f"127.0.0.1:{free_port(set(), (0,))}")
    command = [str(config) if one == "/etc/rmqd/rmqd.yaml" else one for one in arguments]
    async with daemon(config) as running:
        await running.started()
        assert (await asyncio.to_thread(rmqd, *command)).code == ExitCode.OK
        config.write_text(config.read_text() + "    pull_batch_size: many\n")
        refused = await asyncio.to_thread(rmqd, *command)
        assert refused.code == ExitCode.CONFIG
        assert "groups.mailer.pull_batch_size" in refused.err


@pytest.mark.process
def test_the_command_is_one_that_rmqd_has(service: configparser.SectionProxy) -> None:
    program, *arguments = service["ExecStart"].split()
    assert program.endswith("/rmqd")
    help_text = subprocess.run(
        [sys.executable, "-m", "rmqd", arguments[0], "--help"], capture_output=True, text=True, check=True
    ).stdout

    assert arguments[0] == "run"
    assert all(option in help_text for option in arguments if option.startswith("--"))
