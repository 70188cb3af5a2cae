"""The fuzz campaign: a run that was cut goes on and comes to the same end, and its figures reach their table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.campaigns.fuzz import MOST_RSS_BYTES, SLOWEST_SECONDS, Fuzz, FuzzError, FuzzResult, Part
from tests.campaigns.record import PAGE, add_row
from tests.wire.fuzz import FuzzReport, run

SEED = 11
COUNTS = ("cases", "commands", "messages", "corrupt", "bodies", "refused")


@pytest.mark.slow
def test_parts_make_one_run(tmp_path: Path) -> None:
    """The frames are those of the same number in one go, whatever the parts; and a part that was cut is done again."""
    Fuzz(400, SEED, tmp_path, part_frames=200).run()
    with (tmp_path / "parts.jsonl").open("a") as file:
        file.write('{"seed": 11, "sec')  # killed while it wrote

    result = Fuzz(700, SEED, tmp_path, part_frames=200).run()

    whole = run(700, SEED)
    assert {name: result.total(name) for name in COUNTS} == {name: getattr(whole, name) for name in COUNTS}
    assert [part.report.cases for part in result.parts] == [200, 200, 200, 100]
    assert Fuzz(700, SEED, tmp_path).run() == result


def test_a_directory_belongs_to_a_seed(tmp_path: Path) -> None:
    """Figures of two seeds in one row would be nobody's."""
    Fuzz(10, SEED, tmp_path).run()

    with pytest.raises(FuzzError, match="seed 11, not 12"):
        Fuzz(10, SEED + 1, tmp_path)


def test_the_slowest_case_and_the_most_memory_decide() -> None:
    """Over all parts of a run."""
    good = Part(SEED, 1.0, MOST_RSS_BYTES, FuzzReport(cases=5, slowest_seconds=SLOWEST_SECONDS, slowest_case=4))
    slow = replace(good, report=replace(good.report, slowest_seconds=SLOWEST_SECONDS + 0.1, slowest_case=3))
    large = replace(good, peak_rss_bytes=MOST_RSS_BYTES + 1)

    assert FuzzResult(SEED, [good, good]).passed
    assert not FuzzResult(SEED, [good, slow]).passed
    assert "(case 3)" in FuzzResult(SEED, [slow, good]).report()
    assert not FuzzResult(SEED, [large, good]).passed


@pytest.mark.process
@pytest.mark.parametrize("campaign", ["fuzz", "churn"])
def test_a_row_goes_to_the_campaigns_own_table(tmp_path: Path, campaign: str) -> None:
    """Below its last row, in the page as it is, and nothing else changes."""
    page = tmp_path / "campaigns.md"
    page.write_text(PAGE.read_text())
    part = Part(SEED, 1.0, 1 << 20, FuzzReport(cases=5))

    add_row(campaign, FuzzResult(SEED, [part]).cells(), page)

    lines = page.read_text().splitlines()
    [added] = set(lines) - set(PAGE.read_text().splitlines())
    at = lines.index(added)
    assert lines[at - 1].startswith("|")
    assert lines[at + 1 : at + 2] in ([], [""])
    above = [line for line in lines[:at] if line.startswith("**")]
    assert above[-1].startswith(f"**{campaign}**")
    assert f"| {SEED} | 5 |" in added


def test_the_page_says_what_each_cell_is() -> None:
    """Date and commit, then the campaign's own."""
    part = Part(SEED, 1.0, 1 << 20, FuzzReport(cases=5))
    table = PAGE.read_text().partition("**fuzz**")[2].partition("\n| ")[2].splitlines()

    assert table[0].count("|") == len(FuzzResult(SEED, [part]).cells()) + 2
