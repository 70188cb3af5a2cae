"""`rmqd new handler`: what it writes works as it is, and what exists is left alone."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml

from tests.cli.in_process import rmqd
from tests.testing.user_folder import UserFolder


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_project_passes_its_own_checks(tmp_path: Path) -> None:
    made = rmqd("new", "handler", "order-book", "--topic", "a-topic")
    assert made.code == 0
    project = UserFolder(tmp_path / "order-book")
    assert "order-book/order_book/handler.py" in made.out
    code, out = project.pytest("-q", "-p", "no:asyncio")
    assert (code, "3 passed" in out) == (0, True), out
    for check in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy", "."]):
        code, out = project.python("-m", *check, seconds=600)  # mypy reads all of rmqd, too
        assert code == 0, out
    code, out = project.python("-m", "rmqd", "check")
    assert code == 0, out
    code, out = project.python("-m", "rmqd", "test", "tests")
    assert (code, "1 as expected" in out) == (0, True), out


def test_what_exists_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "order-book").mkdir()
    (tmp_path / "order-book" / "mine.py").write_text("mine")
    made = rmqd("new", "handler", "order-book")
    assert made.code == 2
    assert "exists already" in made.err
    assert [path.name for path in (tmp_path / "order-book").iterdir()] == ["mine.py"]


@pytest.mark.parametrize(
    "name", ["Order", "9lives", "a--b", "../up", "json", "class", "rmqd", "tests", "pydantic", "structlog", "log", ""]
)
def test_a_name_that_makes_no_module_or_is_taken_is_refused(tmp_path: Path, name: str) -> None:
    made = rmqd("new", "handler", name)
    assert made.code == 2
    assert "accepted: " in made.err
    assert list(tmp_path.iterdir()) == []


def test_a_topic_that_rocketmq_refuses_is_refused(tmp_path: Path) -> None:
    made = rmqd("new", "handler", "order-book", "--topic", "no topic")
    assert (made.code, list(tmp_path.iterdir())) == (2, [])


def test_a_name_that_yaml_reads_as_something_else_is_a_groups(tmp_path: Path) -> None:
    assert rmqd("new", "handler", "on").code == 0
    config, cases = (
        yaml.safe_load((tmp_path / "on" / file).read_text()) for file in ("config/rmqd.yaml", "tests/on.cases.yaml")
    )
    assert (list(config["groups"]), cases["group"]) == (["on"], "on")


def test_its_entry_point_names_the_handler(tmp_path: Path) -> None:
    assert rmqd("new", "handler", "order-book").code == 0
    project = tomllib.loads((tmp_path / "order-book" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["rmqd.handlers"] == {"order-book": "order_book.handler:handle"}
