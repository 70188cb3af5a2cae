"""A short orderly campaign for every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import behaviour
from tests.nightly.campaigns.orderly import BY, SLOTS, Orderly, OrderlyPlan
from tests.nightly.campaigns.orderly_verdict import FAILED
from tests.rocketmq import RealCluster

# no kills: the locks of a killed member last up to 60 s, which only the whole campaign can afford
SEED = 70


@behaviour(
    "orderly",
    ("Each sharding key keeps its order while Java and rmqd members join and leave, and a queue never has two owners"),
    java=("a queue to release waits 500 ms for its handler; after that its lock is kept until the next attempt"),
    rmqd="the lock is released when the handler has ended and its offset is committed",
    checked="rmqd daemons and a Java consumer under load, with a ledger",
)
@pytest.mark.slow
def test_short_orderly_campaign_keeps_the_order(rocketmq: RealCluster, tmp_path: Path) -> None:
    """Members join and leave for twenty seconds. Failed attempts are repeated; every sharding key keeps its order."""
    plan = OrderlyPlan(
        "short",
        SEED,
        messages=3000,
        per_second=150,
        slots=SLOTS,
        slow_every=25,  # at every membership change some queue has a slow message in flight
        slow_seconds=0.4,
        fail_every=200,
        rest_seconds=(0.5, 2.5),
        kill_share=0,
    )

    result = Orderly(plan, rocketmq, tmp_path).run()

    print(result.report())
    assert result.verdict.passed, result.report()
    assert result.verdict.repeated[FAILED], result.report()
    assert sum(count for what, count in result.events.items() if what.startswith("rmqd")) >= 5, result.report()


@pytest.mark.slow
@pytest.mark.parametrize("java_orderly", [True, False], ids=["orderly", "concurrent"])
def test_short_campaign_keeps_the_order_of_each_key(
    rocketmq: RealCluster, tmp_path: Path, *, java_orderly: bool
) -> None:
    """The Java member locks its queues in one run. In the other it does not, and only rmqd's messages are judged."""
    plan = OrderlyPlan(
        f"short-{'by-key' if java_orderly else 'concurrent'}",
        SEED + 1,
        messages=4000,
        per_second=250,
        slots=SLOTS,
        queues=4,
        usual_seconds=0.02,
        slow_every=50,
        slow_seconds=0.4,
        fail_every=200 if java_orderly else 0,
        rest_seconds=(0.5, 2.5),
        kill_share=0,
        order_by=BY,
        java_orderly=java_orderly,
    )

    result = Orderly(plan, rocketmq, tmp_path).run()

    print(result.report())
    assert result.verdict.passed, result.report()
    assert result.verdict.pairs > plan.messages / 4, result.report()
    assert sum(count for what, count in result.events.items() if what.startswith("rmqd")) >= 5, result.report()
