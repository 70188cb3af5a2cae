"""A short campaign with a growing topic for every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import behaviour
from tests.nightly.campaigns.grow import AWAY, RUNNING, Grow, GrowPlan
from tests.rocketmq import RealCluster


@behaviour(
    "starting offsets",
    "If a known group gets new queues, it skips no messages, with the default consume_from_where",
    java="as long as the queue's first message is in the broker's memory",
    rmqd="always; a group that is stopped meanwhile also begins at the queue's first message",
    checked=("a topic of 1, 4 and 8 queues under load, with a Java consumer and two daemons in one group and a ledger"),
)
@pytest.mark.slow
def test_a_topic_that_grows_loses_nothing(rocketmq: RealCluster, tmp_path: Path) -> None:
    """Producers use new queues at once; members discover them within half a minute."""
    plan = GrowPlan(
        1, (RUNNING, AWAY), per_second=500, stay_seconds=(1.0, 2.0), queues=(1, 4, 8), second_broker=False,
        drain_seconds=60.0,
    )  # fmt: skip
    result = Grow(plan, rocketmq, tmp_path).run()
    print(result.report())
    assert result.passed, result.report()
