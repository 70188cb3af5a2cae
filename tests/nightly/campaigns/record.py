"""Adds the figures of every campaign, with the measured commit, to docs/proof/campaigns.md."""

from __future__ import annotations

import datetime
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.nightly.campaigns.churn import ChurnResult

TOP = Path(__file__).parents[3]
PAGE = TOP / "docs" / "proof" / "campaigns.md"
DIRTY = "-dirty"
"""The suffix of a commit's name if files have changed since."""
ACTIONS = ("join", "leave", "kill")


def append(results: Iterable[ChurnResult]) -> None:
    """Add a row for each churn run."""
    for result in results:
        add_row("churn", _churn_cells(result))


def add_row(campaign: str, cells: Sequence[object], page: Path = PAGE) -> None:
    """Add a row with date and commit to the table of a campaign, which is the first table after `**campaign**`."""
    lines = page.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if line.startswith(f"**{campaign}**"))
    while not lines[at].startswith("|"):
        at += 1
    while at < len(lines) and lines[at].startswith("|"):
        at += 1
    dated = [datetime.datetime.now(datetime.UTC).date().isoformat(), commit(), *cells]
    lines.insert(at, f"| {' | '.join(map(str, dated))} |\n")
    page.write_text("".join(lines))


def _churn_cells(result: ChurnResult) -> list[object]:
    verdict = result.verdict
    totals = {action: sum(n for what, n in result.events.items() if what.endswith(action)) for action in ACTIONS}
    settled = sorted(result.settle_seconds) or [0.0]
    causes = "; ".join(f"{count}: {cause}" for cause, count in verdict.repeated.most_common())
    return [
        result.plan.name,
        result.plan.seed,
        verdict.sent,
        f"{result.seconds:.0f}",
        ", ".join(str(count) for count in totals.values()),
        f"{settled[len(settled) // 2]:.1f} s, {settled[-1]:.1f} s",
        len(verdict.lost),
        len(verdict.owned_twice),
        causes or "none",
    ]


def commit() -> str:
    """Return the commit, marked if the tree differs or git does not tell. Files that campaigns write do not count."""
    pages = ("README.md", "campaigns.md", "conformance.md", "planted-bugs.md")
    written = (*(f"docs/proof/{page}" for page in pages), "tests/nightly/conformance/results.json")
    changed = _git("status", "--porcelain", "--", ".", *(f":(exclude){path}" for path in written))
    head = _git("rev-parse", "--short=10", "HEAD")
    return head + (DIRTY if changed or not head else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=TOP, capture_output=True, text=True, check=False).stdout.strip()
