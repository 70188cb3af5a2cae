"""What all commands have in common: help, completion, the manual page, how they refuse."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.cli.app import command_line
from rmqd.codes import RequestCode, ResponseCode
from rmqd.exit_codes import ExitCode
from rmqd.wire.bodies.cluster import ClusterInfo
from tests.cli.in_process import rmqd
from tests.client.peer import Peer, Reply
from tests.deploy.missing import require


def commands(command: Any = None, *path: str) -> Iterator[tuple[str, ...]]:
    """The words of each command that can be run, such as ("groups", "show")."""
    for name, one in (command or command_line()).commands.items():
        if not one.hidden:
            yield from commands(one, *path, name) if hasattr(one, "commands") else [(*path, name)]


COMMANDS = list(commands())


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("path", [(), *sorted({path[:-1] for path in COMMANDS if len(path) > 1})], ids=" ".join)
def test_no_description_is_cut(path: tuple[str, ...]) -> None:
    listed = rmqd(*path, "--help").out.split("\nCommands:\n")[1]

    shown = " ".join(listed.split())
    for command in COMMANDS:
        if command[:-1] == path:
            described = " ".join(rmqd(*command, "--help").out.split("\n\n")[1].split())
            assert f"{command[-1]} {described.split('. ')[0]}" in shown


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_a_terminal_and_has_an_example(command: tuple[str, ...]) -> None:
    shown = rmqd(*command, "-h")

    assert shown.code == ExitCode.OK
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "Example: rmqd " + " ".join(command) in " ".join(shown.out.split())
    assert not set(shown.out.split("\nOptions:\n")[1]) & set("<{")
    if "--output" in shown.out:
        assert "-o, --output table|json" in shown.out


@pytest.mark.process
def test_help_needs_no_heavy_library() -> None:
    """One of them takes longer to import than all the rest of a help."""
    program = (
        "import sys\nfrom tests.cli.in_process import rmqd\n"
        f"assert all(rmqd(*command, '--help').code == 0 for command in {COMMANDS})\n"
        "print(*sorted({'pydantic', 'asyncio', 'structlog', 'rich', 'yaml'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )

    assert done.stdout == "\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "loaded"), [([], []), (["dlq"], []), (["dlq", "show"], ["dlq_show"]), (["top"], ["top.command"])]
)
def test_help_loads_no_other_command(words: list[str], loaded: list[str]) -> None:
    program = (
        "import sys\nfrom rmqd.cli.command_list import COMMANDS\nfrom tests.cli.in_process import rmqd\n"
        f"assert rmqd(*{words}, '--help').code == 0\n"
        "every = [one for entry in COMMANDS.values() for one in getattr(entry, 'commands', {'': entry}).values()]\n"
        "modules = {one.place.split(':')[0] for one in every} - {'control'}\n"  # which has options of others
        "print(*sorted(module for module in modules if f'rmqd.cli.{module}' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )

    assert done.stdout.split() == loaded


@pytest.mark.process
def test_a_question_by_a_name_server_alone_needs_no_pydantic() -> None:
    program = (
        "import sys\nfrom tests.cli.in_process import rmqd\n"
        "assert rmqd('topics', 'list', '-n', '127.0.0.1:1').code == 69\n"
        "assert rmqd('lag', 'mailer', '-n', '127.0.0.1:1', '-o', 'json').code == 69\n"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )

    assert done.stdout == "False\n"


def test_the_version_has_a_short_form() -> None:
    assert rmqd("-V").out == rmqd("--version").out != ""


def test_the_manual_page_has_every_command_with_its_options() -> None:
    page = rmqd("--man").out.replace("\\-", "-")
    sections = dict(part.split(" [OPTIONS]", 1) for part in page.split("\n.SS rmqd ")[1:])

    assert sections.keys() == {" ".join(command) for command in COMMANDS}
    for command, text in sections.items():
        shown = rmqd(*command.split(), "--help").out.split("\nOptions:\n")[1]
        options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", shown, re.MULTILINE))
        assert options == set(re.findall(r"^\\fB(?:-\w, )?(--[a-z-]+)", text, re.MULTILINE))


@pytest.mark.process
def test_man_renders_the_page_without_complaint() -> None:
    done = subprocess.run(
        [require("groff", package="groff-base"), "-man", "-Tutf8", "-ww"],
        input=rmqd("--man").out.encode(),
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, b"")


def completed(monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    """What bash would offer for the last of these words."""
    monkeypatch.setenv("_RMQD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    return rmqd().out.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("rmqd pau", ["pause"]),
        ("rmqd pause ", ["mailer", "parcels", "shipping"]),
        ("rmqd lag mailer s", ["shipping"]),
        ("rmqd groups show m", ["mailer"]),
        ("rmqd run --group s", ["shipping"]),
        ("rmqd topics show ", ["invoices", "orders", "packed"]),
        ("rmqd offsets show mailer ", ["invoices", "orders"]),
        ("rmqd lag -o ", ["table", "json"]),
        ("rmqd groups mode mailer orders ", ["pop", "pull"]),
    ],
)
def test_names_and_values_are_completed(
    words: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the configuration as it is: a value in it may be wrong, and the cluster away."""
    (tmp_path / "groups").mkdir()
    (tmp_path / "rmqd.yaml").write_text(
        "nameserver: 10.255.255.1:9876\npull: wrong\n"
        'groups:\n  mailer: {subscriptions: {orders: "*", invoices: "*"}}\n  shipping: {subscriptions: {orders: "*"}}\n'
    )
    (tmp_path / "groups" / "parcels.yaml").write_text('subscriptions: {packed: "*"}\n')
    monkeypatch.setenv("RMQD_CONFIG", str(tmp_path))

    assert completed(monkeypatch, words) == offered


def test_without_a_configuration_no_name_is_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RMQD_CONFIG", raising=False)

    assert completed(monkeypatch, "rmqd pause ") == []


@pytest.mark.parametrize(
    "command",
    [
        ("lag",), ("groups", "list"), ("status",), ("reload",), ("send", "orders", "x"), ("diagnose", "mailer"),
        ("try", "mailer"), ("replay", "mailer", "--from", "1h"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_bad_configuration_is_json_where_json_is_asked_for(command: tuple[str, ...], tmp_path: Path) -> None:
    bad = tmp_path / "rmqd.yaml"
    bad.write_text("nameserver: a:1\nhtp: {}\nlgo: {}\n")

    ended = rmqd(*command, "--config", bad, "-o", "json")

    assert ended.code == ExitCode.CONFIG
    assert ended.json()["error"] == "the configuration is wrong"
    problems = "\n".join(ended.json()["problems"])
    assert "rmqd.yaml:2:1: htp" in problems
    assert "rmqd.yaml:3:1: lgo" in problems
    assert "rmqd.yaml:2:1: htp" in ended.err


@pytest.mark.process
@pytest.mark.parametrize("words", ["lag -n 127.0.0.1:1 -o json", "schema", "--help"])
def test_output_that_cannot_be_written_is_told_in_a_line(words: str) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "rmqd", *words.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == ExitCode.FAILURE
    assert ended.stderr.endswith("rmqd: the output cannot be written: No space left on device\n")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("offsets reset mailer orders --to 2026-11-25T08:00:00", "no time zone"),  # the command itself finds it
        ("offsets reset mailer orders --skip 0", "--skip"),
        ("groups show", "GROUP"),
        ("lag --bogus", "--bogus"),
        ("lga", "Did you mean 'lag'?"),
        ("dlq shwo mailer", "Did you mean 'show'?"),
    ],
)
@pytest.mark.parametrize("asks", [("-o", "json"), ("--output=json",)], ids=" ".join)
def test_wrong_usage_is_json_where_json_is_asked_for(words: str, said: str, asks: tuple[str, ...]) -> None:
    ended = rmqd(*words.split(), "-n", "127.0.0.1:1", *asks)
    assert (ended.code, ended.json()["problems"]) == (ExitCode.USAGE, [])
    assert said in ended.json()["error"]
    assert ended.err.startswith("Usage: ")
    assert rmqd(*words.split(), "-n", "127.0.0.1:1").out == ""


@pytest.mark.parametrize(
    "command",
    [
        "lag mailer", "groups list", "groups show mailer", "groups mode mailer orders pop --yes", "topics list",
        "topics show orders", "offsets show mailer", "dlq list", "dlq show mailer", "message query orders key",
        "send orders x", "tail orders", "offsets reset mailer orders --to first --yes",
        "dlq replay mailer --yes", "dlq purge mailer --yes",
    ],
)  # fmt: skip
@pytest.mark.parametrize("has_name_server", [True, False])
async def test_a_cluster_that_cannot_be_seen_is_exit_69(command: str, has_name_server: bool, tmp_path: Path) -> None:
    """A cron line tells it from a group that is behind: all brokers are down, or no name server answers."""
    async with Peer() as peer:
        peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, Reply(code=ResponseCode.TOPIC_NOT_EXIST, remark="No topic route"))
        peer.on(RequestCode.GET_BROKER_CLUSTER_INFO, Reply(body=ClusterInfo({}, {}).to_json()))
        address = peer.address if has_name_server else "127.0.0.1:1"
        here = ("-n", address, "-o", "json", "--set", f"state_dir={tmp_path}")
        ended = await asyncio.to_thread(rmqd, *command.split(), *here)

    assert ended.code == ExitCode.UNAVAILABLE, ended.err
    assert address in ended.err
    if command.startswith("send"):
        assert ended.json() == []  # what was sent
    else:
        assert address in ended.json()["error"]
    assert "Traceback" not in ended.err
