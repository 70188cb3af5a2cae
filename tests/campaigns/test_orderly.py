"""A cut of the orderly campaign, short enough for every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.orderly import SLOTS, Orderly, OrderlyPlan
from tests.campaigns.orderly_verdict import FAILED
from tests.rocketmq import RealCluster

# whoever is killed keeps its locks for up to 60 s: that is for the whole campaign
SEED = 70


@pytest.mark.slow
def test_short_orderly_campaign_keeps_the_order(rocketmq: RealCluster, tmp_path: Path) -> None:
    """Members join and leave for some twenty seconds: every sharding key keeps its order, nothing is handled again."""
    plan = OrderlyPlan(
        "short",
        SEED,
        messages=4000,
        per_second=200,
        slots=SLOTS,
        slow_every=200,
        slow_seconds=0.3,  # below the 500 ms that Java waits for a handler of a queue that it gives up
        fail_every=500,
        rest_seconds=(0.5, 2.5),
        kill_share=0,
    )

    result = Orderly(plan, rocketmq, tmp_path).run()

    print(result.report())
    assert result.verdict.passed, result.report()
    assert result.verdict.repeated[FAILED], result.report()
    assert sum(count for what, count in result.events.items() if what.startswith("rmqd")) >= 5, result.report()
