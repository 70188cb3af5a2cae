"""The campaign of planted bugs: resumed searches, and bugs that no history reveals."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.nightly.campaigns import planted
from tests.nightly.simulation.planted import PLANTED
from tests.nightly.simulation.planted.search import Search

pytestmark = [pytest.mark.process, pytest.mark.slow]
BUGS = ("no_drain", "retries_at_once")
SEED = 6  # the seed of a history that reveals the second bug


def test_an_interrupted_run_is_resumed(tmp_path: Path) -> None:
    before = Search("no_drain", None, "", 30, 2, 9.0)
    (tmp_path / "no_drain.json").write_text(json.dumps(asdict(before)))
    result = planted.run(SEED, 30, tmp_path, BUGS)
    assert result.missed == ["no_drain"]
    assert [one.bug for one in result.found] == ["retries_at_once"]
    assert "retried too early" in result.found[0].wrong


def test_a_longer_run_continues_after_the_histories_of_the_previous_run(tmp_path: Path) -> None:
    before = Search("retries_at_once", None, "", 3, 2, 9.0)
    (tmp_path / "retries_at_once.json").write_text(json.dumps(asdict(before)))
    (found,) = planted.run(1, 40, tmp_path, ("retries_at_once",)).found
    assert found.seed is not None
    assert found.seed >= 6
    assert found.seed == found.histories + found.passed
    assert found.seconds > 9.0


def test_the_recorded_seed_of_a_bug_is_tried_first(tmp_path: Path) -> None:
    bug = "retries_at_once"
    (found,) = planted.run(1, 40, tmp_path, (bug,), planted.recorded_seeds()).found
    assert (found.seed, found.histories) == (planted.recorded_seeds()[bug], 1)


def test_the_page_keeps_its_text_and_gets_a_row_for_each_bug(tmp_path: Path) -> None:
    page = tmp_path / "planted-bugs.md"
    page.write_text("# Planted bugs\n\nA word.\n\n| bug | old |\n|---|---|\n| gone | 1 |\n")
    found = Search("no_drain", 4, "twice: k1 | k2", 2, 3, 1.25)
    planted.Searches(1, 30, (Search("retries_at_once", None, "", 30, 0, 9.0), found)).write(page)
    assert planted.recorded_seeds(page) == {"no_drain": 4}
    text = page.read_text()
    assert text.startswith("# Planted bugs\n\nA word.\n\n| bug |")
    assert "gone" not in text
    rows = [line for line in text.splitlines() if line.startswith(("| no_", "| retries_"))]
    assert [row.split(" | ")[2:5] for row in rows] == [["4", "2 of 5", "1.2"], ["not found", "30", "9.0"]]


def test_a_row_has_the_median_and_maximum_of_successful_searches() -> None:
    searches = tuple(Search(f"bug{n}", n or None, "lost: k1", 2 * n + 1, 0, 1.5 * n) for n in range(4))
    assert planted.Searches(1, 30, searches).cells() == [1, 30, 4, 3, "5, 7", "3.0, 4.5", 16, 1]


def test_every_bug_can_be_planted(subtests: pytest.Subtests) -> None:
    """A patch names an attribute of rmqd as text, so a type checker does not notice when rmqd renames it."""
    for name, plant in PLANTED.items():
        with subtests.test(name), pytest.MonkeyPatch.context() as patch:
            plant(patch)
