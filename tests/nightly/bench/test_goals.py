from __future__ import annotations

import json

import pytest

from bench.goals import GOALS, as_json, before_table, goals_table, median, medians_table, notes
from bench.job import Figures
from bench.scenarios import SCENARIOS, Results, turns


def figures(
    *,
    speed: float = 100.0,
    cpu_us: float = 1.0,
    first_seconds: float = 1.0,
    p50_ms: float | None = None,
    p99_ms: float | None = None,
) -> Figures:
    return Figures(speed, cpu_us, cpu_us, 50.0, first_seconds, first_seconds + 1, p50_ms, p99_ms)


def results(scenario: str, **runs: list[Figures]) -> Results:
    found = Results()
    for contender, several in runs.items():
        for one in several:
            found.add(scenario, contender, one)
    return found


def row(table: str, what: str) -> list[str]:
    lines = [line for line in table.splitlines() if what in line]
    assert len(lines) == 1, table
    return [cell.strip() for cell in lines[0].strip("|").split("|")]


def test_a_goal_is_judged_by_the_ratio_of_medians() -> None:
    found = results(
        "batch 1",
        rmqd=[figures(speed=speed) for speed in (100.0, 410.0, 900.0)],
        java=[figures(speed=speed) for speed in (90.0, 100.0, 400.0)],
    )
    table = goals_table(found)
    assert row(table, "messages/s against Java's, batch size 1") == [
        "messages/s against Java's, batch size 1",
        "410",
        "100",
        "4.10",
        "≥ 4",
        "met",
    ]


def test_a_missed_goal_is_marked_in_capitals() -> None:
    found = results("batch 1", rmqd=[figures(cpu_us=4.0)], java=[figures(cpu_us=10.0)])
    assert row(goals_table(found), "CPU per message against Java's, batch size 1")[3:] == ["0.40", "≤ 0.35", "MISSED"]


def test_a_figure_worse_than_before_is_marked() -> None:
    """By more than 3 %, in the direction that is worse. Other ratios have no mark."""
    before, now = figures(speed=100.0, cpu_us=1.0), figures(speed=98.0, cpu_us=1.05)
    found = results("batch 1", rmqd=[now], before=[before])
    cells = row(before_table(found), "batch 1")
    assert cells[:3] == ["batch 1", "0.980", "1.050 !"]
    found = results("batch 1", rmqd=[figures(speed=95.0)], before=[before])
    assert row(before_table(found), "batch 1")[1] == "0.950 !"


def test_goals_without_figures_are_left_out() -> None:
    found = results("batch 1", rmqd=[figures()])
    assert "against" not in goals_table(found)
    assert as_json(found)["goals"] == {}


def test_stalled_starts_do_not_count_in_the_median_start_time() -> None:
    runs = [figures(first_seconds=2.0), figures(first_seconds=32.0), figures(first_seconds=32.0)]
    assert median(runs, "first_seconds") == 2.0
    found = results("batch 1", java=runs)
    assert notes(found) == [
        "batch 1: 2 of 3 starts of java had no message for 20 s or longer; "
        "its seconds to first and last message exclude them"
    ]


def test_the_median_is_none_if_all_starts_stalled() -> None:
    assert median([figures(first_seconds=32.0)], "first_seconds") is None


def test_failures_are_noted() -> None:
    found = Results(failures=["batch 1, run 2: java gave no figures"])
    assert notes(found) == ["failed: batch 1, run 2: java gave no figures"]


def test_medians_table_leaves_unmeasured_cells_empty() -> None:
    table = medians_table(results("paced", go=[figures(p50_ms=0.9, p99_ms=2.5)], raw=[figures()]))
    assert row(table, "| go")[8:10] == ["0.90", "2.50"]
    assert row(table, "| raw")[8:10] == ["", ""]


def test_every_goal_compares_something_that_is_measured() -> None:
    for goal in GOALS:
        assert hasattr(figures(), goal.figure), goal
        scenario = next(scenario for scenario in SCENARIOS if scenario.name == goal.scenario)
        assert {"rmqd", goal.against} <= set(scenario.contenders), goal


def test_the_results_can_be_written_as_json() -> None:
    found = results("paced", rmqd=[figures(p50_ms=0.5, p99_ms=2.0)], go=[figures(p50_ms=1.0, p99_ms=4.0)])
    document = json.loads(json.dumps(as_json(found)))
    assert document["goals"]["p50 born-to-handled at 1,000 msg/s against Go's"]["ratio"] == 0.5
    assert document["runs"]["paced"]["rmqd"][0]["p99_ms"] == 2.0


def test_each_run_starts_with_another_contender() -> None:
    assert [turns(["java", "go", "rmqd"], run) for run in (1, 2, 3, 4)] == [
        ["java", "go", "rmqd"],
        ["go", "rmqd", "java"],
        ["rmqd", "java", "go"],
        ["java", "go", "rmqd"],
    ]
    assert turns([], 1) == []


@pytest.mark.parametrize("line", ["", "started", "[1, 2]", '{"event": "group.started"}', '{"peer": "java-load"}'])
def test_other_lines_are_not_figures(line: str) -> None:
    assert Figures.from_line(line, 0.0) is None


def test_a_line_of_figures_is_read_relative_to_the_start_of_the_process() -> None:
    line = json.dumps(
        {
            "peer": "go",
            "msgs_per_s": 1000,
            "cpu_us_per_msg": 7.5,
            "cpu_us_per_msg_with_start": 8.0,
            "peak_rss_mib": 16.0,
            "first_at": 1000.5,
            "last_at": 1002.0,
            "latency_ms": {"p50": 0.9, "p99": 2.6, "max": 9.0},
        }
    )
    read = Figures.from_line(line, 1000.0)
    assert read is not None
    assert (read.first_seconds, read.last_seconds) == (0.5, 2.0)
    assert (read.p50_ms, read.p99_ms) == (0.9, 2.6)
