"""The fuzz campaign: resumed runs, failures, and rows in the table."""

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
    """Return a good part with the given figures."""
    return replace(GOOD, target=target, executions=executions, seed=seed)


def test_an_interrupted_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incomplete part runs again. Each part has a different seed, so that its inputs differ."""
    monkeypatch.setattr(fuzz, "PART_EXECUTIONS", 200)
    seeds: list[int] = []

    def run_part(target: str, executions: int, seed: int, directory: Path) -> Part:
        seeds.append(seed)
        return ran(target, executions, seed, directory)

    Fuzz("frames", 400, SEED, tmp_path, run_part=run_part).run()
    with (tmp_path / "frames" / "parts.jsonl").open("a") as file:
        file.write('{"seed": 11, "sec')  # killed during a write
    result = Fuzz("frames", 700, SEED, tmp_path, run_part=run_part).run()

    assert [part.executions for part in result.parts] == [200, 200, 200, 100]
    assert seeds == [11, 12, 13, 14]
    assert result.executions == 700
    assert Fuzz("frames", 700, SEED, tmp_path, run_part=run_part).run() == result


def test_a_directory_accepts_only_the_seed_of_its_run(tmp_path: Path) -> None:
    """A row must not mix figures of two seeds."""
    Fuzz("frames", 10, SEED, tmp_path, run_part=ran).run()
    with pytest.raises(FuzzError, match="seed 11, not 12"):
        Fuzz("frames", 10, SEED + 1, tmp_path)
    with pytest.raises(FuzzError, match="no target frame; accepted: frames, configurations, requests"):
        Fuzz("frame", 10, SEED, tmp_path)


def test_the_slowest_input_and_peak_memory_of_all_parts_decide() -> None:
    slow = replace(GOOD, slowest_seconds=SLOW_SECONDS + 0.01)
    large = replace(GOOD, peak_rss_bytes=MAX_RSS_MIB * 2**20 + 1)
    assert FuzzResult("frames", SEED, [GOOD, GOOD]).passed
    assert not FuzzResult("frames", SEED, [GOOD, slow]).passed
    assert not FuzzResult("frames", SEED, [large, GOOD]).passed


@pytest.mark.process
@pytest.mark.parametrize("campaign", ["fuzz", "churn"])
def test_a_row_is_added_to_the_table_of_its_campaign(tmp_path: Path, campaign: str) -> None:
    """The row follows the last one; nothing else changes."""
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


def test_the_table_has_a_heading_for_each_cell() -> None:
    """Date and commit come first."""
    table = PAGE.read_text().partition("**fuzz**")[2].partition("\n| ")[2].splitlines()
    assert table[0].count("|") == len(FuzzResult("frames", SEED, [GOOD]).cells()) + 2


@pytest.mark.process
def test_a_failing_input_ends_the_run_and_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the exception and the command that repeats it."""
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
def test_a_part_counts_if_the_fuzzer_completed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
    """A late timer of libFuzzer may end a completed process. An earlier end does not count."""
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
