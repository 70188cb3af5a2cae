"""A message that always fails, with the same script for a Java consumer and for rmqd."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import behaviour
from tests.conformance.attempts import steps
from tests.conformance.scripted import both
from tests.conformance.test_retries import QUEUES, scripts
from tests.integration.consuming import dead_letters
from tests.rocketmq import RealCluster
from tests.rocketmq.fixtures import fresh_name


@pytest.fixture
def topic(rocketmq_short_delays: RealCluster, group: str) -> str:
    """A new topic with a retry delay of one second."""
    return rocketmq_short_delays.create_topic(fresh_name(group, "topic"), QUEUES)


@behaviour(
    "retries",
    "Without max_reconsume_times a message has 17 attempts, and is then dead-lettered",
    java="-1 means 16 in a concurrent group; levels 3 to 18",
    rmqd="the same",
    checked="compared with a Java consumer: all 17 attempts",
    long=True,
)
async def test_a_message_has_seventeen_attempts_by_default(
    rocketmq_short_delays: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """The delay level increases up to the last level."""
    cluster = rocketmq_short_delays
    scripts(cluster, topic, never="later")
    async with both(cluster, group, tmp_path, [topic], consume_from_where="first_offset") as sides:
        java, rmqd = await sides.finish(topic, attempts=17, timeout_seconds=60, retries=True)
    letters = [await dead_letters(cluster, side.group, 1) for side in (sides.java, sides.rmqd)]

    assert steps(rmqd) == steps(java) == [(0, None), *((times, str(times + 2)) for times in range(1, 17))]
    assert [found[0].reconsume_times for found in letters] == [17, 16]
