"""A short POP campaign for every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly.campaigns.pop import PopCampaign, PopPlan
from tests.rocketmq import RealCluster


@pytest.mark.slow
def test_short_drain_with_kills_loses_nothing(rocketmq: RealCluster, tmp_path: Path) -> None:
    """A kill delays the member's messages by the invisible time, and has no other effect."""
    plan = PopPlan(
        "short",
        11,
        drained=6000,
        kills=2,
        slots=("rmqd-a", "rmqd-b"),
        invisible_seconds=5,
        revive_seconds=5,
        usual_seconds=0.05,
        calm_seconds=(0.5, 1.5),
    )

    result = PopCampaign(plan, rocketmq, tmp_path / "run").run()

    print(result.report())
    assert result.passed, result.report()
    assert result.kills == plan.kills, result.report()
