"""Test results, stored in `results.json`, and their table in docs/proof/rocketmq-tests.md."""

from __future__ import annotations

import datetime
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.nightly.apache_tests.run import Outcomes
from tests.rocketmq import release

FILE = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[3] / "docs" / "proof" / "rocketmq-tests.md"
BEGIN, END = "<!-- own tests: begin -->\n", "<!-- own tests: end -->\n"


def load() -> dict[str, Any]:
    """Return by version the `date` and the `tests`. Each test has a text: empty if it passed, else the reason."""
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def record(version: str, outcomes: Outcomes, *, whole: bool) -> None:
    """Store the outcomes of a run and write the table. A run of all classes replaces all earlier outcomes."""
    found = load()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    # the end of a text differs in each run: names of topics, times, addresses
    tests = {name: why[:160] for name, why in outcomes.tests.items()}
    if not whole:
        tests = found.get(version, {}).get("tests", {}) | tests
    found[version] = {"date": today, "tests": dict(sorted(tests.items()))}
    FILE.write_text(json.dumps(dict(sorted(found.items())), indent=1, ensure_ascii=False) + "\n")
    write_page(found)


def compare(version: str, outcomes: Outcomes) -> int:
    """Print the tests that pass only on one of the two. Returns 1 if one passes only on the real RocketMQ."""
    real = load().get(release.DEFAULT, {}).get("tests", {})
    if version == release.DEFAULT or not real:
        return 0
    there = {name for name in outcomes.tests if real.get(name) == ""}
    behind = sorted(name for name in there if outcomes.tests[name])
    ahead = sorted(name for name, why in outcomes.tests.items() if not why and real.get(name))
    print(f"{len(there) - len(behind)} of the {len(there)} that pass on a real RocketMQ pass")
    for name in behind:
        print(f"  fails: {name}: {outcomes.tests[name][:200]}")
    for name in ahead:
        print(f"  passes here alone: {name}")
    return 1 if behind else 0


def write_page(found: dict[str, Any]) -> None:
    """Put the table between the markers."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(before + BEGIN + table(found) + END + after)


def table(found: dict[str, Any]) -> str:
    """Return a row for each class: the number of tests that passed on each of the two, and on both."""
    versions = (release.DEFAULT, release.EMBEDDED)
    tests = {version: found.get(version, {}).get("tests", {}) for version in versions}
    rows: dict[str, list[str]] = defaultdict(list)
    for name in sorted({*tests[release.DEFAULT], *tests[release.EMBEDDED]}):
        rows[name.split(".")[0]].append(name)
    dates = " and ".join(f"{found[version]['date']} ({version})" for version in versions if version in found)
    lines = [
        f"Run on {dates}.",
        "",
        "| class | tests | real 5.5.0 | embedded | both |",
        "| --- | --- | --- | --- | --- |",
    ]
    total = [0, 0, 0, 0]
    for title, names in sorted(rows.items()):
        passed = [{name for name in names if tests[version].get(name) == ""} for version in versions]
        figures = [len(names), len(passed[0]), len(passed[1]), len(passed[0] & passed[1])]
        total = [sum(pair) for pair in zip(total, figures, strict=True)]
        lines.append(f"| {title} | " + " | ".join(map(str, figures)) + " |")
    lines.append("| **all** | " + " | ".join(f"**{figure}**" for figure in total) + " |")
    return "\n".join(lines) + "\n"
