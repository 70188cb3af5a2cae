"""What a run against an older RocketMQ adds up to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import Behaviour
from tests.nightly.campaigns.older import added_up
from tests.nightly.conformance import page

REPORT = """\
<testsuites><testsuite name="pytest" time="{seconds}">
<testcase classname="tests.a" name="test_good"/>
<testcase classname="tests.a" name="test_bad"><failure/></testcase>
<testcase classname="tests.a" name="test_left"><skipped/></testcase>
</testsuite></testsuites>
"""


def row(title: str, differs: str = "") -> Behaviour:
    return Behaviour("orderly", title, java="yes", rmqd="also", checked="a ledger", differs=differs)


def test_a_run_is_the_sum_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests by their outcome, and rows of the page by what is different there."""
    reports = [tmp_path / "a.xml", tmp_path / "b.xml"]
    for report, seconds in zip(reports, (1.5, 2.5), strict=True):
        report.write_text(REPORT.format(seconds=seconds))
    results = {"one": "holds", "two": "holds", "three": "failed", "four": "skipped: since 5.0"}
    monkeypatch.setattr(page, "load", lambda: {"4.9.7": results})
    rows = [row("one"), row("two", differs="later"), row("three"), row("four"), row("five")]
    monkeypatch.setattr(page, "declared", lambda: {one: ["test_x"] for one in rows})

    result = added_up("4.9.7", reports)

    assert result.cells() == ["4.9.7", 6, 2, 2, 1, 1, 1, 1, "4"]
    assert not result.passed
    assert result.behaviours["not run"] == 1
    assert result.report().splitlines()[-1] == "FAILED tests.a::test_bad"
