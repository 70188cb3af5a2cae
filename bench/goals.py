"""The performance goals: the figures that each compares, and the tables of results."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from bench.contenders import BEFORE
from bench.job import Figures
from bench.machine import QUIET_SHARE
from bench.scenarios import SCENARIOS, Results

# The Java client sometimes receives nothing until its second heartbeat, 30 s after the start. Such starts would
# distort the start times, so they are counted separately for every contender.
STALLED_SECONDS = 20.0
TOLERATED_SHARE = 0.03  # how much worse a figure may be than before

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("messages_per_second", "msg/s", "{:,.0f}"),
    ("cpu_us_per_message", "CPU µs/msg", "{:.2f}"),
    ("cpu_us_per_message_with_start", "with start", "{:.2f}"),
    ("peak_rss_mib", "peak RSS MiB", "{:.0f}"),
    ("first_seconds", "s to first", "{:.2f}"),
    ("last_seconds", "s to last", "{:.2f}"),
    ("p50_ms", "p50 ms", "{:.2f}"),
    ("p99_ms", "p99 ms", "{:.2f}"),
    ("broker_cpu_us_per_message", "broker µs/msg", "{:.2f}"),
)


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for the ratio of rmqd's figure to another contender's: at least, or at most, a number."""

    what: str
    scenario: str
    figure: str
    against: str
    limit: float
    at_least: bool = False

    def met_by(self, ratio: float) -> bool:
        """Return whether this ratio meets the goal."""
        return ratio >= self.limit if self.at_least else ratio <= self.limit


GOALS = (
    Goal("messages/s against Java's, batch size 1", "batch 1", "messages_per_second", "java", 4.0, at_least=True),
    Goal("messages/s against Java's, batch size 32", "batch 32", "messages_per_second", "java", 5.0, at_least=True),
    Goal("messages/s against Go's, batch size 1", "batch 1", "messages_per_second", "go", 1.5, at_least=True),
    Goal("messages/s against the raw puller's, batch size 32", "batch 32", "messages_per_second", "raw", 0.75, True),
    Goal("messages/s against the raw puller's, batch size 1", "batch 1", "messages_per_second", "raw", 0.6, True),
    Goal("CPU per message against Java's, batch size 1", "batch 1", "cpu_us_per_message", "java", 0.35),
    Goal("CPU per message against Java's, batch size 32", "batch 32", "cpu_us_per_message", "java", 0.25),
    Goal("peak RSS against Java's, batch size 1", "batch 1", "peak_rss_mib", "java", 0.25),
    Goal("peak RSS against Java's, batch size 32", "batch 32", "peak_rss_mib", "java", 0.25),
    Goal("CPU per message against Go's, batch size 1", "batch 1", "cpu_us_per_message", "go", 0.6),
    Goal("process start to first message against Java's", "batch 1", "first_seconds", "java", 0.3),
    Goal("orderly messages/s against Java's, batch size 1", "orderly 1", "messages_per_second", "java", 1.3, True),
    Goal("orderly messages/s against Java's, batch size 32", "orderly 32", "messages_per_second", "java", 1.3, True),
    Goal("orderly CPU per message against Java's, batch size 1", "orderly 1", "cpu_us_per_message", "java", 0.4),
    Goal("orderly CPU per message against Java's, batch size 32", "orderly 32", "cpu_us_per_message", "java", 0.4),
    Goal("p50 born-to-handled at 1,000 msg/s against Go's", "paced", "p50_ms", "go", 1.0),
    Goal("p99 born-to-handled at 1,000 msg/s against Go's", "paced", "p99_ms", "go", 1.0),
    Goal("CPU per message at 1,000 msg/s against Go's", "paced", "cpu_us_per_message", "go", 1.0),
    Goal("CPU per message at 1,000 msg/s against the floor's", "paced", "cpu_us_per_message", "floor", 1.2),
    Goal("messages/s at pull and batch 1024 against Java's", "batch 1024", "messages_per_second", "java", 1.0, True),
    *(
        Goal(f"{what} against Java's, {scenario.name}", scenario.name, figure, "java", 1.0, at_least)
        for scenario in SCENARIOS
        if scenario.switch
        for what, figure, at_least in (
            ("messages/s", "messages_per_second", True),
            ("CPU per message", "cpu_us_per_message", False),
        )
    ),
)


def median(runs: Iterable[Figures], figure: str) -> float | None:
    """Return the median of one figure; None if no run has it. Start times exclude stalled starts."""
    values = [value for run in runs if (value := getattr(run, figure)) is not None]
    if figure in ("first_seconds", "last_seconds"):
        values = [value for run in runs if run.first_seconds < STALLED_SECONDS for value in [getattr(run, figure)]]
    return statistics.median(values) if values else None


def measured(goal: Goal, results: Results) -> tuple[float, float] | None:
    """Return rmqd's median and the other's; None if one of them was not measured."""
    scenario = results.runs.get(goal.scenario, {})
    ours = median(scenario.get("rmqd", []), goal.figure)
    theirs = median(scenario.get(goal.against, []), goal.figure)
    return None if ours is None or not theirs else (ours, theirs)


def goals_table(results: Results) -> str:
    """Return the measured goals as a Markdown table, each with its ratio and result."""
    rows = []
    for goal in GOALS:
        pair = measured(goal, results)
        if pair is not None:
            ratio = pair[0] / pair[1]
            mark = "met" if goal.met_by(ratio) else "MISSED"
            bound = f"{'≥' if goal.at_least else '≤'} {goal.limit:g}"
            form = _form(goal.figure)
            rows.append((goal.what, form.format(pair[0]), form.format(pair[1]), f"{ratio:.2f}", bound, mark))
    return table(("comparison", "rmqd", "other", "ratio", "goal", ""), rows)


def before_table(results: Results) -> str:
    """Return the ratios of this rmqd's medians to the other checkout's, as a Markdown table; worse ones are marked."""
    rows = []
    for scenario, by_contender in results.runs.items():
        cells = []
        for figure, _, _ in COLUMNS:
            now = median(by_contender.get("rmqd", []), figure)
            then = median(by_contender.get(BEFORE, []), figure)
            is_rate = figure == "messages_per_second"
            if now is None or not then or (scenario == "paced" and is_rate):
                cells.append("")
                continue
            worse = then / now - 1 if is_rate else now / then - 1
            cells.append(f"{now / then:.3f}{' !' if worse > TOLERATED_SHARE else ''}")
        if any(cells):
            rows.append((scenario, *cells))
    return table(("rmqd divided by before", *(title for _, title, _ in COLUMNS)), rows)


def medians_table(results: Results) -> str:
    """Return every scenario's medians by contender, as a Markdown table."""
    rows = []
    for scenario, by_contender in results.runs.items():
        for contender, runs in by_contender.items():
            rows.append((scenario, contender, *(_cell(runs, figure, form) for figure, _, form in COLUMNS)))
    return table(("scenario", "contender", *(title for _, title, _ in COLUMNS)), rows)


def notes(results: Results) -> list[str]:
    """Return the notes below the tables."""
    lines = [f"failed: {text}" for text in results.failures]
    for scenario, by_contender in results.runs.items():
        for contender, runs in by_contender.items():
            disturbed = max(run.foreign_cpu_share for run in runs)
            if disturbed >= QUIET_SHARE:
                lines.append(f"{scenario}, {contender}: other work had up to {disturbed:.0%} of the machine")
            traced = median(runs, "traced_share")
            if traced is not None:
                lines.append(f"{scenario}, {contender}: the broker has the trace of {traced:.0%} of the messages")
            stalled = [run for run in runs if run.first_seconds >= STALLED_SECONDS]
            if stalled:
                lines.append(
                    f"{scenario}: {len(stalled)} of {len(runs)} starts of {contender} had no message for "
                    f"{STALLED_SECONDS:g} s or longer; its seconds to first and last message exclude them"
                )
    return lines


def as_json(results: Results) -> dict[str, object]:
    """Return all figures as values for JSON."""
    ratios = {}
    for goal in GOALS:
        pair = measured(goal, results)
        if pair is not None:
            ratio = pair[0] / pair[1]
            ratios[goal.what] = {
                "rmqd": pair[0],
                "other": pair[1],
                "ratio": ratio,
                "limit": goal.limit,
                "at_least": goal.at_least,
                "met": goal.met_by(ratio),
            }
    runs = {name: {who: [asdict(run) for run in of] for who, of in by.items()} for name, by in results.runs.items()}
    return {"goals": ratios, "runs": runs, "failures": results.failures}


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table with aligned columns."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    shown = ["| " + " | ".join(_padded(cell, widths[at], at) for at, cell in enumerate(line)) + " |" for line in lines]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([shown[0], rule, *shown[1:]])


def _cell(runs: list[Figures], figure: str, form: str) -> str:
    paced = any(run.p50_ms is not None for run in runs)
    if paced and figure in ("messages_per_second", "last_seconds"):
        return ""  # the loader's speed, not the contender's
    value = median(runs, figure)
    return "" if value is None else form.format(value)


def _padded(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column and cell[:1].isdigit() else cell.ljust(width)


def _form(figure: str) -> str:
    return next(form for name, _, form in COLUMNS if name == figure)
