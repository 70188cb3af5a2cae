"""A short churn campaign for every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import behaviour
from tests.nightly.campaigns.churn import Churn, ChurnPlan
from tests.rocketmq import RealCluster

# with this seed rmqd members leave twice, join three times and are killed once; the Java member is killed
SEED = 70


@behaviour(
    "rebalance",
    "Java and rmqd members in one group share its queues, through joins, leaves and kills",
    java="two owners for a moment at each change, so messages are handled twice",
    rmqd="the same if a Java member acquires a queue; rmqd waits for the previous owner, Java or rmqd",
    checked="a Java consumer and two daemons under load, with a ledger",
)
@pytest.mark.slow
def test_short_churn_loses_nothing(rocketmq: RealCluster, tmp_path: Path) -> None:
    """Members join, leave and are killed for half a minute. Each repetition must have an allowed cause."""
    plan = ChurnPlan("short", SEED, messages=6000, per_second=200, slow_every=200, calm_seconds=(1.0, 3.0))

    result = Churn(plan, rocketmq, tmp_path).run()

    print(result.report())
    assert result.verdict.passed, result.report()
    assert sum(count for what, count in result.events.items() if what.startswith("rmqd")) >= 5, result.report()
