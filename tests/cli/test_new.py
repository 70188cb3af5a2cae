"""`rmqd new handler`: refused names, and the names in the new files."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

from tests.cli.in_process import rmqd


def test_an_existing_folder_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "order-book").mkdir()
    (tmp_path / "order-book" / "mine.py").write_text("mine")
    made = rmqd("new", "handler", "order-book")
    assert made.code == 2
    assert "exists already" in made.err
    assert [path.name for path in (tmp_path / "order-book").iterdir()] == ["mine.py"]


def test_a_name_that_is_not_a_module_name_or_is_taken_is_refused(tmp_path: Path) -> None:
    names = "Order 9lives a--b ../up json class rmqd tests pydantic structlog log".split()
    for name in (*names, ""):
        made = rmqd("new", "handler", name)
        assert (made.code, "expected " in made.err) == (2, True), name
        assert list(tmp_path.iterdir()) == [], name


def test_a_topic_that_rocketmq_refuses_is_refused(tmp_path: Path) -> None:
    made = rmqd("new", "handler", "order-book", "--topic", "no topic")
    assert (made.code, list(tmp_path.iterdir())) == (2, [])


def test_a_handler_name_that_is_a_yaml_boolean_stays_text(tmp_path: Path) -> None:
    assert rmqd("new", "handler", "on").code == 0
    config, cases = (
        yaml.safe_load((tmp_path / "on" / file).read_text()) for file in ("config/rmqd.yaml", "tests/on.cases.yaml")
    )
    assert (list(config["groups"]), cases["group"]) == (["on"], "on")


def test_the_entry_point_names_the_handler(tmp_path: Path) -> None:
    assert rmqd("new", "handler", "order-book").code == 0
    project = tomllib.loads((tmp_path / "order-book" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["rmqd.handlers"] == {"order-book": "order_book.handler:handle"}


def test_the_project_requires_the_installed_rmqd_or_a_copied_wheel(tmp_path: Path) -> None:
    def requirement(name: str) -> str:
        project = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())
        assert project["tool"]["hatch"]["metadata"] == {"allow-direct-references": True}
        first: str = project["project"]["dependencies"][0]
        return first

    assert rmqd("new", "handler", "linked").code == 0
    assert requirement("linked").startswith("rmqd @ file:///")  # the tests run with an editable installation
    (tmp_path / "dist").mkdir()
    refused = rmqd("new", "handler", "copied", "--wheels", "dist")
    assert (refused.code, "dist has no rmqd-*.whl" in refused.err, (tmp_path / "copied").exists()) == (2, True, False)
    (tmp_path / "dist" / "rmqd-9.9-py3-none-any.whl").write_text("wheel")
    assert rmqd("new", "handler", "copied", "--wheels", "dist").code == 0
    assert requirement("copied") == "rmqd @ {root:uri}/wheels/rmqd-9.9-py3-none-any.whl"
    assert (tmp_path / "copied" / "wheels" / "rmqd-9.9-py3-none-any.whl").read_text() == "wheel"
