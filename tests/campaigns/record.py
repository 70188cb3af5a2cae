"""docs/campaigns.md: the figures of every campaign, with the commit that they were measured at."""

from __future__ import annotations

import datetime
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.campaigns.churn import ChurnResult

PAGE = Path(__file__).parent.parent.parent / "docs" / "campaigns.md"
ACTIONS = ("join", "leave", "kill")


def append(results: Iterable[ChurnResult]) -> None:
    """Add a row for each run."""
    with PAGE.open("a") as page:
        page.writelines(_row(result) for result in results)


def _row(result: ChurnResult) -> str:
    verdict = result.verdict
    totals = {action: sum(n for what, n in result.events.items() if what.endswith(action)) for action in ACTIONS}
    settled = sorted(result.settle_seconds) or [0.0]
    causes = "; ".join(f"{count}: {cause}" for cause, count in verdict.repeated.most_common())
    cells = [
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        _commit(),
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
    return f"| {' | '.join(map(str, cells))} |\n"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    return subprocess.run(command, cwd=PAGE.parent, capture_output=True, text=True, check=False).stdout.strip()
