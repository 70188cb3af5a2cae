"""deploy/rmqd.service: its numbers and commands match the daemon's."""

from __future__ import annotations

import asyncio
import configparser
from pathlib import Path

import pytest

from rmqd.consumer.consumer_options import GroupKeys
from rmqd.errors import ExitCode
from rmqd.runtime.value_kinds import parse_duration_seconds
from rmqd_handlers.exec import Exec
from tests.cli.daemon_here import daemon
from tests.cli.in_process import rmqd
from tests.daemon.daemon_process import write_config
from tests.rocketmq.spec import free_port

UNIT = Path(__file__).parents[3] / "deploy" / "rmqd.service"


@pytest.fixture
def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser["Service"]


def test_the_stop_timeout_covers_the_drain(service: configparser.SectionProxy) -> None:
    drain = GroupKeys.shutdown_timeout_seconds
    kill_after = parse_duration_seconds(Exec.Options.model_fields["kill_after"].default)

    assert float(service["TimeoutStopSec"]) > drain + kill_after
    assert service["KillMode"] == "mixed"


def test_the_unit_expects_ready_and_watchdog_notifications(service: configparser.SectionProxy) -> None:
    assert service["Type"] == "notify"
    assert float(service["WatchdogSec"]) > 0


def test_a_daemon_with_an_invalid_configuration_is_not_restarted(service: configparser.SectionProxy) -> None:
    assert service["Restart"] == "on-failure"
    assert set(service["RestartPreventExitStatus"].split()) == {str(int(ExitCode.USAGE)), str(int(ExitCode.CONFIG))}


def test_the_service_continues_after_one_process_ran_out_of_memory(service: configparser.SectionProxy) -> None:
    """The daemon replaces a worker or a handler's process."""
    assert service["OOMPolicy"] == "continue"


async def test_a_reload_fails_if_the_configuration_is_invalid(
    service: configparser.SectionProxy, tmp_path: Path
) -> None:
    """`systemctl reload` waits for this command, and fails if it fails."""
    program, *arguments = service["ExecReload"].split()
    assert program == service["ExecStart"].split()[0]
    config = write_config(tmp_path, "mailer", listen=f"127.0.0.1:{free_port(set(), (0,))}")
    command = [str(config) if one == "/etc/rmqd/rmqd.yaml" else one for one in arguments]
    async with daemon(config):
        assert (await asyncio.to_thread(rmqd, *command)).code == ExitCode.OK
        config.write_text(config.read_text() + "    pull_batch_size: many\n")
        refused = await asyncio.to_thread(rmqd, *command)
        assert refused.code == ExitCode.CONFIG
        assert "groups.mailer.pull_batch_size" in refused.err


def test_the_unit_runs_an_existing_command_of_rmqd(service: configparser.SectionProxy) -> None:
    program, *arguments = service["ExecStart"].split()
    assert program.endswith("/rmqd")
    help_text = rmqd(arguments[0], "--help").out

    assert arguments[0] == "run"
    assert all(option in help_text for option in arguments if option.startswith("--"))
