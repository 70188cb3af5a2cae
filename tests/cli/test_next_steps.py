"""Every cause that rmqd reports has a next step with a command, and each command works as it is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from rmqd.cli.terminal.output import add_command_options
from rmqd.consumer.health.causes import CAUSES, make_problem
from rmqd.errors import ExitCode
from tests.cli.cluster import Cluster
from tests.cli.in_process import rmqd

COMMAND = re.compile(r"`((?:rmqd|mqadmin) [^`]+)`")
# required options of mqadmin's commands
MQADMIN = {
    "updateSubGroup": {"-c", "-g"},
    "updateTopicPerm": {"-c", "-t", "-p"},
    "updateBrokerConfig": {"-c", "-k", "-v"},
}


def commands(cause: str, config: Path | None = None) -> list[list[str]]:
    step = add_command_options(make_problem(cause, "", group="mailer", topic="orders").next, config)
    return [shlex.split(command) for command in COMMAND.findall(step)]


def test_every_next_step_has_a_command(subtests: pytest.Subtests) -> None:
    for cause in CAUSES:
        with subtests.test(cause=cause):
            assert commands(cause) or "`timedatectl`" in CAUSES[cause].step or "`on_corrupt" in CAUSES[cause].step


def test_commands_get_the_options_of_the_command_that_prints_them() -> None:
    step = "`rmqd dlq show mailer` and `rmqd resume mailer`, or `mqadmin topicList`, or `rmqd run --group mailer`"
    assert add_command_options(step, None) == step
    of_cluster = {"--nameserver": "a:9876", "--cluster": None}
    assert COMMAND.findall(add_command_options(step, Path("b c.yaml"), "a:1", of_cluster)) == [
        "rmqd dlq show mailer -c 'b c.yaml' --nameserver a:9876",
        "rmqd resume mailer -c 'b c.yaml' --http a:1",
        "mqadmin topicList",
        "rmqd run --group mailer -c 'b c.yaml'",
    ]


def test_a_step_for_a_member_of_another_daemon_asks_for_its_address() -> None:
    step = add_command_options(
        "`rmqd restart mailer`, or `rmqd dlq show mailer`", Path("c.yaml"), "a:1", other_daemon=True
    )
    assert COMMAND.findall(step) == ["rmqd restart mailer --http HOST:PORT", "rmqd dlq show mailer -c c.yaml"]
    assert step.endswith("; HOST:PORT is the HTTP address of the named member's daemon")


@pytest.mark.process
def test_commands_work_as_they_are_printed(
    subtests: pytest.Subtests, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands get the configuration of the command that prints them. They may lack a daemon or a confirmation."""
    monkeypatch.chdir(tmp_path)
    cluster.fill("orders", 1)
    group = {"subscriptions": {"orders": "*"}, "handler": {"plugin": "log", "canary": {"plugin": "log"}}}
    keys = {"nameserver": cluster.nameserver, "state_dir": str(tmp_path / "state"), "groups": {"mailer": group}}
    config = tmp_path / "our own.yaml"
    config.write_text(yaml.safe_dump(keys))
    ok = {ExitCode.OK, ExitCode.FAILURE, ExitCode.UNAVAILABLE}
    for program, *arguments in (one for cause in CAUSES for one in commands(cause, config)):
        with subtests.test(command=" ".join(arguments)):
            if program == "mqadmin":
                assert MQADMIN[arguments[0]] <= {*arguments}
                continue
            more = ["--help"] if arguments[0] == "run" else []
            ended = rmqd(*arguments, *more)
            assert ended.code in ok, ended.err
            assert "Traceback" not in ended.err
