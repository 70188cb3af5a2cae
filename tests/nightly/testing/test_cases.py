"""`rmqd test`: cases in YAML, reports of failed cases, and errors in files.

The core of these tests is in tests/testing/test_cases.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import command
from tests.cli.in_process import rmqd
from tests.testing.test_cases import GOOD, GROUP, HANDLERS, cases, in_the_folder
from tests.testing.user_folder import TOP, UserFolder

__all__ = ["cases", "in_the_folder"]


def test_chaos_compares_the_state_that_a_case_file_names(cases: UserFolder) -> None:
    case = "  a case:\n    messages: [{keys: order-1, body: x}]\n    expect: {acked: [1]}\n"
    group = GROUP.replace(":handle", ":write")
    cases.write("books.cases.yaml", group + case)
    ended = rmqd("test", "--chaos")
    assert (ended.code, "Use state=" in ended.out) == (0, True)
    names = "state: handlers_of_cases:read\nreset: handlers_of_cases:clear\n"
    cases.write("book.txt", "")
    cases.write("books.cases.yaml", names + group + case)
    ended = rmqd("test", "--chaos")
    assert ended.code == 1
    assert "the state: 'order-1 order-1 ', expected 'order-1 '" in ended.out
    cases.write("books.cases.yaml", names.replace("read", "red") + group + case)
    ended = rmqd("test", "--chaos")
    assert ended.code == 78
    assert "books.cases.yaml:1:1: state: the module handlers_of_cases has no red" in ended.err


def test_a_case_that_does_not_end_fails(cases: UserFolder) -> None:
    case = (
        "  a case:\n    group: {consume_mode: orderly}\n    timeout: 300ms\n"
        "    messages: [{keys: order-1, tags: poison, body: x}]\n    expect: {}\n"
    )
    cases.write("bad.cases.yaml", GROUP + case)
    ended = rmqd("test")
    assert ended.code == 1
    assert "has something left to do after" in ended.out


def test_folders_are_searched_except_hidden_ones_and_environments(cases: UserFolder) -> None:
    for place in ("inner/deep", ".hidden", "env"):
        Path(cases.path, place).mkdir(parents=True)
        cases.write(f"{place}/good.cases.yaml", GOOD)
    cases.write("env/pyvenv.cfg", "")
    ended = rmqd("test", "-o", "json")
    assert {one["file"] for one in ended.json()} == {"inner/deep/good.cases.yaml"}


def test_a_handler_module_that_was_loaded_from_another_folder_is_an_error(cases: UserFolder) -> None:
    for place in ("one", "two"):
        Path(cases.path, place).mkdir()
        cases.write(f"{place}/handlers_of_cases.py", HANDLERS)
        cases.write(f"{place}/good.cases.yaml", GOOD)
    Path(cases.path, "handlers_of_cases.py").unlink()
    ended = rmqd("test")
    assert ended.code == 78
    assert ended.err.splitlines()[0].startswith(
        "two/good.cases.yaml:3:21: groups.good.handler.plugin: the module handlers_of_cases was loaded from "
    )


@pytest.mark.process
def test_it_runs_without_pytest(cases: UserFolder) -> None:
    cases.write("good.cases.yaml", GOOD)
    code, out = cases.python(
        "-c",
        "import sys; sys.modules['pytest'] = None; sys.argv = ['rmqd', 'test']; from rmqd.cli.app import main; main()",
    )
    assert code == 0, out


@pytest.mark.process
def test_the_example_cases_of_the_handlers_pass() -> None:
    ended = command.rmqd("test", TOP / "handlers" / "examples")  # a new process has imported no other `mailer`
    assert ended.code == 0, ended.out
    assert "3 cases: 3 as expected, 0 not" in ended.out


@pytest.mark.process
def test_pytest_reports_an_error_in_a_case_file(cases: UserFolder) -> None:
    cases.write("bad.cases.yaml", GROUP + "  a case:\n    mesages: []\n    expect: {}\n")
    code, out = cases.pytest()
    assert code == 2
    assert "bad.cases.yaml:6:5: cases.a case.mesages: unknown key; did you mean messages?" in out


def test_a_message_that_never_reached_the_handler_fails_its_case(cases: UserFolder) -> None:
    own = "{subscriptions: {orders: paid}}"
    case = f"  a case:\n    group: {own}\n    messages: [{{tags: open, body: x}}]\n    expect: {{acked: [1]}}\n"
    cases.write("bad.cases.yaml", GROUP + case)
    ended = rmqd("test")
    assert ended.code == 1
    assert "1: expected acked\n               got never handed to the handler" in ended.out


def test_a_message_that_a_broadcasting_group_dropped_is_reported_as_dropped(cases: UserFolder) -> None:
    case = "  a case:\n    group: {message_model: broadcasting}\n    messages: [{tags: poison, body: x}]\n"
    cases.write("bad.cases.yaml", GROUP + case + "    expect: {acked: [1]}\n")
    ended = rmqd("test")
    assert ended.code == 1
    assert "1: expected acked\n               got dropped\n" in ended.out


def test_json_for_programs(cases: UserFolder) -> None:
    cases.write("good.cases.yaml", GOOD)
    first, _ = rmqd("test", "good.cases.yaml", "-o", "json").json()
    assert (first["case"], first["place"], first["ok"]) == ("all kinds of ends", "good.cases.yaml:5:3", True)
    assert first["attempts"] == 10
    assert first["elapsed_seconds"] > 7190
    assert first["messages"][1] == {
        "name": "order-2",
        "acked": 0,
        "retried": 3,
        "dead_letters": ["max_reconsume_times reached"],
    }


@pytest.mark.process
@pytest.mark.parametrize("option", ["--chaos", "--chaos-kills"])
def test_only_chaos_kills_finds_a_case_whose_handler_relies_on_memory(cases: UserFolder, option: str) -> None:
    """A killed process loses its memory, so the handler writes again."""
    case = "  a case:\n    messages: [{keys: order-1, body: x}]\n    expect: {acked: [1]}\n"
    cases.write("book.txt", "")
    names = "state: handlers_of_cases:read\nreset: handlers_of_cases:clear\n"
    cases.write("books.cases.yaml", names + GROUP.replace(":handle", ":write_what_is_new") + case)
    ended = rmqd("test", option)
    if option == "--chaos":
        assert ended.code == 0
        return
    assert ended.code == 1
    assert "1. order-1 (orders queue 0)  killed (kill -9) after its last line" in ended.out
    assert "the state: 'order-1 order-1 ', expected 'order-1 '" in ended.out


def test_a_handler_that_cannot_be_started_fails_its_case(cases: UserFolder) -> None:
    own = "{handler: {plugin: 'handlers_of_cases:Unstartable'}}"
    case = f"  a case:\n    group: {own}\n    messages: [{{body: x}}]\n    expect: {{acked: [1]}}\n"
    cases.write("bad.cases.yaml", GROUP + case)
    ended = rmqd("test")
    assert ended.code == 1
    assert "the handler could not be run: ValueError: no password" in ended.out


def test_a_case_file_can_name_a_group_of_a_configuration(cases: UserFolder) -> None:
    cases.write(
        "rmqd.yaml",
        "nameserver: 127.0.0.1:9876\ngroups:\n  mailer:\n    subscriptions: {orders: paid}\n"
        "    handler: {plugin: 'handlers_of_cases:handle'}\n",
    )
    case = "  a case:\n    messages: [{tags: paid, body: x}, {tags: open, body: y}]\n    expect: {acked: [1]}\n"
    cases.write("one.cases.yaml", f"config: rmqd.yaml\ngroup: mailer\ncases:\n{case}")
    assert rmqd("test", "one.cases.yaml").code == 0
    cases.write("one.cases.yaml", f"group: mailer\ncases:\n{case}")
    assert rmqd("test", "one.cases.yaml", "--config", "rmqd.yaml").code == 0
    cases.write("one.cases.yaml", f"group: mialer\ncases:\n{case}")
    ended = rmqd("test", "one.cases.yaml", "--config", "rmqd.yaml")
    assert ended.code == 78
    assert ended.err == "one.cases.yaml:1:8: group: rmqd.yaml has no group 'mialer'; expected one of mailer\n"


def test_wrong_usage(folder: UserFolder) -> None:
    missing, empty = rmqd("test", "nowhere"), rmqd("test")
    assert (missing.code, empty.code) == (2, 2)
    assert "no such file or folder" in missing.err
    assert "has no files *.cases.yaml" in empty.err
    assert rmqd("test", "-o", "xml").code == 2
