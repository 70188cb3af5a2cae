"""Every cause that rmqd reports has a next step with a command, and each command works as it is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from rmqd.consumer.health.causes import CAUSES, make_problem
from rmqd.errors import ExitCode
from tests.cli.cluster import Cluster
from tests.cli.in_process import rmqd

COMMAND = re.compile(r"`((?:rmqd|mqadmin) [^`]+)`")
# of mqadmin, each with its required options
MQADMIN = {
    "updateSubGroup": {"-c", "-g"},
    "updateTopicPerm": {"-c", "-t", "-p"},
    "updateBrokerConfig": {"-c", "-k", "-v"},
}


def commands(cause: str) -> list[list[str]]:
    step = make_problem(cause, "", group="mailer", topic="orders").next
    return [shlex.split(command) for command in COMMAND.findall(step)]


def test_every_next_step_has_a_command(subtests: pytest.Subtests) -> None:
    for cause in CAUSES:
        with subtests.test(cause=cause):
            assert commands(cause) or "`timedatectl`" in CAUSES[cause].step or "`on_corrupt" in CAUSES[cause].step


@pytest.mark.process
def test_commands_work_as_they_are_printed(
    subtests: pytest.Subtests, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon may be missing, and a question may be asked, but no command is wrong."""
    monkeypatch.chdir(tmp_path)
    cluster.fill("orders", 1)
    group = {"subscriptions": {"orders": "*"}, "handler": {"plugin": "log", "canary": {"plugin": "log"}}}
    keys = {"nameserver": cluster.nameserver, "state_dir": str(tmp_path / "state"), "groups": {"mailer": group}}
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "rmqd.yaml").write_text(yaml.safe_dump(keys))
    ok = {ExitCode.OK, ExitCode.FAILURE, ExitCode.UNAVAILABLE}
    for program, *arguments in (one for cause in CAUSES for one in commands(cause)):
        with subtests.test(command=" ".join(arguments)):
            if program == "mqadmin":
                assert MQADMIN[arguments[0]] <= {*arguments}
                continue
            more = ["--help"] if arguments[0] == "run" else []
            ended = rmqd(*arguments, *more)
            assert ended.code in ok, ended.err
            assert "Traceback" not in ended.err
