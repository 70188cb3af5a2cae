"""Behaviour of all commands: help, completion, the manual page, errors."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.cli.app import command_line
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import ExitCode
from rmqd.wire.bodies.route_data import ClusterInfo
from tests.cli.in_process import rmqd
from tests.client.peer import Peer, Reply


def commands(command: Any = None, *path: str) -> Iterator[tuple[str, ...]]:
    """The words of each command that can be run, such as ("groups", "show")."""
    for name, one in (command or command_line()).commands.items():
        if not one.hidden:
            yield from commands(one, *path, name) if hasattr(one, "commands") else [(*path, name)]


COMMANDS = list(commands())
WITHOUT_DATA = {("demo",), ("run",), ("dev",), ("new", "handler"), ("broker",)} | {
    ("spark", verb) for verb in ("run", "submit", "pack")
}
"""The commands that run until they are stopped, or write files. All others print data."""
TOP = Path(__file__).parents[2]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def words(text: str) -> str:
    """The text in one line."""
    return " ".join(text.split())


@pytest.mark.usefixtures("narrow")
def test_no_description_is_cut() -> None:
    """Checks the list of all commands, and the lists of `groups`, `dlq` and others."""
    cut = []
    for path in [(), *sorted({path[:-1] for path in COMMANDS if len(path) > 1})]:
        listed = words(rmqd(*path, "--help").out.split("\nCommands:\n")[1])
        for command in COMMANDS:
            if command[:-1] == path:
                described = words(rmqd(*command, "--help").out.split("\n\n")[1])
                if f"{command[-1]} {described.split('. ')[0]}" not in listed:
                    cut.append(command)
    assert cut == []


@pytest.mark.usefixtures("narrow")
def test_help_fits_a_terminal_and_has_an_example() -> None:
    """Checks every command. The manual page has the same options."""
    page = rmqd("--man").out.replace("\\-", "-")
    sections = dict(part.split(" [OPTIONS]", 1) for part in page.split("\n.SS rmqd ")[1:])
    assert sections.keys() == {" ".join(command) for command in COMMANDS}
    wrong = []
    for command in COMMANDS:
        shown = rmqd(*command, "-h")
        listed = shown.out.split("\nOptions:\n")[1]
        options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", listed, re.MULTILINE))
        in_page = re.findall(r"^\\fB(?:-\w, )?(--[a-z-]+)", sections[" ".join(command)], re.MULTILINE)
        holds = {
            "exit code": shown.code == ExitCode.OK,
            "width": max(map(len, shown.out.splitlines())) <= 80,
            "example": "Example: rmqd " + " ".join(command) in words(shown.out),
            "placeholders": not set(listed) & set("<{"),
            "output": ("-o, --output table|json" in shown.out) is (command not in WITHOUT_DATA),
            "-h is --help": shown.out == rmqd(*command, "--help").out,
            "manual page": options == set(in_page),
        }
        wrong += [(command, what) for what, is_so in holds.items() if not is_so]
    assert wrong == []


PROGRAM = """
import sys
from rmqd.cli.app import COMMANDS
from tests.cli.in_process import rmqd

modules = {place.split(":")[0] for place in COMMANDS.values()}

def loaded():
    return sorted(module for module in modules if f"rmqd.cli.{module}" in sys.modules)

assert rmqd("--help").code == rmqd("dlq", "--help").code == 0
assert loaded() == []
heavy = {"pydantic", "asyncio", "structlog", "rich", "yaml"} & sys.modules.keys()
assert not heavy, heavy
assert rmqd("dlq", "show", "--help").code == 0
assert loaded() == ["dlq"]
assert rmqd("topics", "list", "-n", "127.0.0.1:1").code == 69
assert rmqd("lag", "mailer", "-n", "127.0.0.1:1", "-o", "json").code == 69
assert loaded() == ["dlq", "group_commands", "topic_commands"]
heavy = {"pydantic", "rich", "yaml"} & sys.modules.keys()
assert not heavy, heavy
"""


HELP = """
import sys
from rmqd.cli.app import COMMANDS
from tests.cli.in_process import rmqd

for command in COMMANDS:
    assert rmqd(*command.split(), "--help").code == 0
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]  # as libraries look for one
    heavy = {"pydantic", "asyncio.events", "structlog", "rich", "yaml"} & sys.modules.keys()
    assert not heavy, (command, heavy)
"""


@pytest.mark.process
@pytest.mark.parametrize("program", [PROGRAM, HELP], ids=["one", "all"])
def test_a_command_imports_no_more_than_it_needs(program: str) -> None:
    """The list imports no command, help no heavy library, and a query with only a name server no pydantic."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=TOP)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_version_has_a_short_form() -> None:
    assert rmqd("-V").out == rmqd("--version").out != ""


def completed(monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    """The completions that bash offers for the last of these words."""
    monkeypatch.setenv("_RMQD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    return rmqd().out.split()


def test_names_and_values_are_completed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Names come from the configuration, even if a value is wrong or the cluster is unreachable."""
    (tmp_path / "groups").mkdir()
    (tmp_path / "rmqd.yaml").write_text(
        "nameserver: 10.255.255.1:9876\npull: wrong\n"
        'groups:\n  mailer: {subscriptions: {orders: "*", invoices: "*"}}\n  shipping: {subscriptions: {orders: "*"}}\n'
    )
    (tmp_path / "groups" / "parcels.yaml").write_text('subscriptions: {packed: "*"}\n')
    monkeypatch.setenv("RMQD_CONFIG", str(tmp_path))
    offered = {
        "rmqd pau": ["pause"],
        "rmqd pause ": ["mailer", "parcels", "shipping"],
        "rmqd lag mailer s": ["shipping"],
        "rmqd groups show m": ["mailer"],
        "rmqd run --group s": ["shipping"],
        "rmqd topics show ": ["invoices", "orders", "packed"],
        "rmqd offsets show mailer ": ["invoices", "orders"],
        "rmqd lag -o ": ["table", "json"],
        "rmqd groups mode mailer orders ": ["pop", "pull"],
    }

    assert {line: completed(monkeypatch, line) for line in offered} == offered


def test_without_a_configuration_no_name_is_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RMQD_CONFIG", raising=False)

    assert completed(monkeypatch, "rmqd pause ") == []


def test_configuration_errors_are_json_with_output_json(tmp_path: Path) -> None:
    bad = tmp_path / "rmqd.yaml"
    bad.write_text("nameserver: a:1\nhtp: {}\nlgo: {}\n")
    for line in (
        "lag", "groups list", "status", "reload", "send orders x", "diagnose mailer", "try mailer",
        "replay mailer --from 1h",
    ):  # fmt: skip
        ended = rmqd(*line.split(), "--config", bad, "-o", "json")
        assert ended.code == ExitCode.CONFIG, line
        assert ended.json()["error"] == "the configuration is wrong"
        problems = "\n".join(ended.json()["problems"])
        assert "rmqd.yaml:2:1: htp" in problems
        assert "rmqd.yaml:3:1: lgo" in problems
        assert "rmqd.yaml:2:1: htp" in ended.err, line


@pytest.mark.process
def test_an_output_error_is_reported_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "rmqd", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            cwd=TOP,
        )  # fmt: skip
    assert ended.returncode == ExitCode.FAILURE
    assert ended.stderr == "rmqd: the output cannot be written: No space left on device\n"


UNAVAILABLE = (
    "lag mailer", "groups list", "groups show mailer", "groups mode mailer orders pop --yes", "topics list",
    "topics show orders", "offsets show mailer", "offsets show mailer orders", "dlq list", "dlq show mailer",
    "message get x", "message query orders key", "send orders x", "tail orders",
    "offsets reset mailer orders --to first --yes", "dlq replay mailer --yes", "dlq purge mailer --yes",
)  # fmt: skip


@pytest.mark.parametrize("has_name_server", [True, False])
async def test_commands_exit_with_69_if_the_cluster_is_unavailable(has_name_server: bool, tmp_path: Path) -> None:
    """All brokers are down, or no name server responds. A cron job must not mistake this for a lagging group."""
    async with Peer() as peer:
        peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, Reply(code=ResponseCode.TOPIC_NOT_EXIST, remark="No topic route"))
        peer.on(RequestCode.GET_BROKER_CLUSTER_INFO, Reply(body=ClusterInfo({}, {}).to_json()))
        address = peer.address if has_name_server else "127.0.0.1:1"
        here = ("-n", address, "-o", "json", "--set", f"state_dir={tmp_path}")
        for line in UNAVAILABLE:
            ended = await asyncio.to_thread(rmqd, *line.split(), *here)
            assert ended.code == ExitCode.UNAVAILABLE, (line, ended.err)
            assert address in ended.err, line
            if line.startswith("send"):
                assert ended.json() == []  # the sent messages
            else:
                assert address in ended.json()["error"], line
            assert "Traceback" not in ended.err, line


@pytest.mark.process
@pytest.mark.parametrize("command", ["run", "check"])
def test_ctrl_c_during_the_imports_prints_no_traceback(tmp_path: Path, command: str) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import rmqd.__main__ as r; r.main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, command],
        env={"PYTHONPATH": f"{tmp_path}:{TOP}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")
