"""The page has the declarations and results of the tests, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import Behaviour
from tests.nightly.conformance import page
from tests.nightly.conformance.page import FAILED, HOLDS, OLDER, PAGE, SKIPPED, declared, load, render
from tests.rocketmq import release

ONE = Behaviour("orderly", "Order is kept", java="yes", rmqd="also", checked="a ledger")
TESTS = ["tests/integration/test_orderly.py::test_order"]


def test_the_page_has_every_behaviour_and_nothing_else() -> None:
    """Run `python -m tests.nightly.conformance.page` after a change of declarations."""
    assert PAGE.read_text() == render(declared(), load())


def test_a_row_names_its_test_and_its_results() -> None:
    text = render({ONE: TESTS}, {version: {ONE.title: HOLDS} for version in release.RELEASES})

    assert "## Orderly consumption\n" in text
    assert "## Filters" not in text
    assert "| Order is kept | yes | also | a ledger: `test_order` | holds | holds | no |\n" in text


@pytest.mark.parametrize(
    ("result", "differs", "cell"),
    [
        (HOLDS, "", "no"),
        (HOLDS, "after 10 s", "after 10 s"),
        (FAILED, "after 10 s", "failed"),
        (f"{SKIPPED}: not in RocketMQ 4.9.7: since 5.0", "", "not in RocketMQ 4.9.7: since 5.0"),
    ],
)
def test_a_difference_on_an_older_version_is_shown_only_with_a_result(result: str, differs: str, cell: str) -> None:
    """A declared difference is shown only if its test holds."""
    one = Behaviour("orderly", "Order is kept", java="yes", rmqd="also", checked="a ledger", differs=differs)

    assert f"| not run | not run | {cell} |\n" in render({one: TESTS}, {OLDER: {one.title: result}})


@pytest.mark.parametrize(
    ("result", "differs", "cell"),
    [
        (HOLDS, "", "holds"),
        (HOLDS, "its file is another", "holds; its file is another"),
        (FAILED, "its file is another", "failed"),
        (f"{SKIPPED}: has one broker", "", "has one broker"),
    ],
)
def test_a_difference_on_the_embedded_broker_is_shown(result: str, differs: str, cell: str) -> None:
    """It is shown after the result. A skipped test has only the reason."""
    one = Behaviour("orderly", "Order is kept", java="yes", rmqd="also", checked="a ledger", embedded=differs)

    assert f"| not run | {cell} | not run |\n" in render({one: TESTS}, {release.EMBEDDED: {one.title: result}})


@pytest.mark.parametrize(("area", "java"), [("nonsense", "yes"), ("orderly", ""), ("orderly", "a | b")])
def test_an_invalid_declaration_is_refused(area: str, java: str) -> None:
    """It is refused when the module of its test is imported."""
    with pytest.raises(ValueError, match=r"unknown area 'nonsense'; expected one of starting|one line without"):
        Behaviour(area, "title", java=java, rmqd="the same", checked="somehow")


def test_only_results_of_declared_behaviours_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partial run keeps the other results, and deletes results of removed behaviours."""
    monkeypatch.setattr(page, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(page, "PAGE", tmp_path / "conformance.md")
    two = Behaviour("orderly", "Locks are kept", java="yes", rmqd="also", checked="a ledger")
    monkeypatch.setattr(page, "declared", lambda: {ONE: TESTS, two: TESTS})
    page.record("5.5.0", {ONE.title: HOLDS, two.title: FAILED})
    page.record("5.5.0", {two.title: HOLDS})
    assert load() == {"5.5.0": {ONE.title: HOLDS, two.title: HOLDS}}

    monkeypatch.setattr(page, "declared", lambda: {two: TESTS})
    page.record("4.9.7", {two.title: HOLDS})

    assert load() == {"5.5.0": {ONE.title: HOLDS, two.title: HOLDS}, "4.9.7": {two.title: HOLDS}}
    assert (tmp_path / "conformance.md").read_text() == render({two: TESTS}, load())
