"""The fuzz campaign: a run that was cut goes on, and its figures reach their table."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.nightly.campaigns import fuzz
from tests.nightly.campaigns.fuzz import MAX_RSS_MIB, Fuzz, FuzzError, FuzzResult, Part
from tests.nightly.campaigns.record import PAGE, add_row
from tests.nightly.fuzzing.target import SLOW_SECONDS

SEED = 11
GOOD = Part("frames", SEED, 5, 6, 1.0, SLOW_SECONDS, "00", MAX_RSS_MIB * 2**20, edges=7, inputs=3)


def ran(target: str, executions: int, seed: int, directory: Path) -> Part:
    """A part that does as it is told."""
    return replace(GOOD, target=target, executions=executions, seed=seed)


def test_parts_make_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that was cut is done again, and each part has a seed of its own, so that it does something else."""
    monkeypatch.setattr(fuzz, "PART_EXECUTIONS", 200)
    seeds: list[int] = []

    def run_part(target: str, executions: int, seed: int, directory: Path) -> Part:
        seeds.append(seed)
        return ran(target, executions, seed, directory)

    Fuzz("frames", 400, SEED, tmp_path, run_part=run_part).run()
    with (tmp_path / "frames" / "parts.jsonl").open("a") as file:
        file.write('{"seed": 11, "sec')  # killed while it wrote
    result = Fuzz("frames", 700, SEED, tmp_path, run_part=run_part).run()

    assert [part.executions for part in result.parts] == [200, 200, 200, 100]
    assert seeds == [11, 12, 13, 14]
    assert result.executions == 700
    assert Fuzz("frames", 700, SEED, tmp_path, run_part=run_part).run() == result


def test_a_directory_belongs_to_a_seed(tmp_path: Path) -> None:
    """Figures of two seeds in one row would be nobody's."""
    Fuzz("frames", 10, SEED, tmp_path, run_part=ran).run()
    with pytest.raises(FuzzError, match="seed 11, not 12"):
        Fuzz("frames", 10, SEED + 1, tmp_path)
    with pytest.raises(FuzzError, match="no target frame; accepted: frames, configurations, requests"):
        Fuzz("frame", 10, SEED, tmp_path)


def test_the_slowest_input_and_the_most_memory_decide() -> None:
    """Over all parts of a run."""
    slow = replace(GOOD, slowest_seconds=SLOW_SECONDS + 0.01)
    large = replace(GOOD, peak_rss_bytes=MAX_RSS_MIB * 2**20 + 1)
    assert FuzzResult("frames", SEED, [GOOD, GOOD]).passed
    assert not FuzzResult("frames", SEED, [GOOD, slow]).passed
    assert not FuzzResult("frames", SEED, [large, GOOD]).passed


@pytest.mark.process
@pytest.mark.parametrize("campaign", ["fuzz", "churn"])
def test_a_row_goes_to_the_campaigns_own_table(tmp_path: Path, campaign: str) -> None:
    """Below its last row, in the page as it is, and nothing else changes."""
    page = tmp_path / "campaigns.md"
    page.write_text(PAGE.read_text())

    add_row(campaign, FuzzResult("frames", SEED, [GOOD]).cells(), page)

    lines = page.read_text().splitlines()
    [added] = set(lines) - set(PAGE.read_text().splitlines())
    at = lines.index(added)
    assert lines[at - 1].startswith("|")
    assert lines[at + 1 : at + 2] in ([], [""])
    above = [line for line in lines[:at] if line.startswith("**")]
    assert above[-1].startswith(f"**{campaign}**")
    assert f"| frames | {SEED} | 5 | 6 |" in added


def test_the_page_says_what_each_cell_is() -> None:
    """Date and commit, then the campaign's own."""
    table = PAGE.read_text().partition("**fuzz**")[2].partition("\n| ")[2].splitlines()
    assert table[0].count("|") == len(FuzzResult("frames", SEED, [GOOD]).cells()) + 2


@pytest.mark.process
def test_an_input_that_fails_ends_the_run_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the exception, and how to have it again."""
    program = tmp_path / "python"
    found = tmp_path / "crash-1"
    program.write_text(
        "#!/bin/sh\necho ' === Uncaught Python exception: ==='\necho 'IndexError: x'\n"
        f"echo 'Test unit written to {found}'\nexit 77\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(FuzzError, match=f"IndexError: x; .*python -m tests.nightly.fuzzing frames {found}"):
        fuzz.run_guided("frames", 10, SEED, tmp_path)


@pytest.mark.process
@pytest.mark.parametrize("done", [True, False])
def test_a_part_counts_if_the_fuzzer_came_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """Even if a late timer of libFuzzer ends the process; what ends it before does not count."""
    program = tmp_path / "python"
    figures = '{"executions": 10, "cases": 12, '
    figures += '"seconds": 1, "slowest_seconds": 0, "slowest_input": "", "peak_rss_bytes": 1}'
    told = "Done 10 in 1 second(s)" if done else ""
    program.write_text(
        f"#!/bin/sh\necho '#9 NEW cov: 7 ft: 8 corp: 3/9b'\necho '{told}'\necho '{figures}' > $4\nkill -ALRM $$\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    if done:
        part = fuzz.run_guided("frames", 10, SEED, tmp_path)
        assert (part.executions, part.cases, part.edges, part.inputs) == (10, 12, 7, 3)
    else:
        with pytest.raises(FuzzError, match="ended with -14"):
            fuzz.run_guided("frames", 10, SEED, tmp_path)
