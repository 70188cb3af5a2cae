"""The allocate strategy of a member in a running group, and the queues if the strategy fails."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rmqd.consumer.allocate import AllocateByConfig, AllocateStrategy
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.rebalance.test_sharing import RETRY, Changing, list_members, problem, rebalance, refuse
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("unpaced")


async def test_a_group_whose_strategy_fails_is_not_ready_and_says_why(broker: ScriptedBroker) -> None:
    """It has no queue, and calls the strategy again."""
    broker.create_topic(TOPIC)
    strategy = Changing()
    strategy.answer = refuse
    async with member(broker.peer.address, Seen(), allocate_strategy=AllocateStrategy("own", strategy)) as running:
        await eventually(lambda: len(strategy.asked) >= 2, "it is called again")
        snapshot = running.consumer.snapshot()
        assert not snapshot.ready
        assert "the moon is not full" in (snapshot.not_ready_reason or "")
        assert running.owned() == set()


async def test_configured_queues_are_acquired_whatever_other_members_there_are(broker: ScriptedBroker) -> None:
    """A queue that does not exist is a problem until it exists."""
    broker.create_topic(TOPIC, 3)
    broker.members[GROUP] += ["0@java"]
    named = (MessageQueue(TOPIC, "a", 1), MessageQueue(TOPIC, "a", 3), MessageQueue(RETRY, "a", 0))
    async with member(
        broker.peer.address, Seen(), allocate_strategy=AllocateStrategy("by_config", AllocateByConfig(named))
    ) as running:
        await eventually(lambda: running.owned() == {(TOPIC, 1)}, "the existing queue is acquired")
        found = problem(running)
    assert found.cause == "allocate_failed"
    assert found.evidence == f"allocate_queues lists queues that {TOPIC} does not have: {TOPIC}@a:3"


@pytest.mark.parametrize(("topics", "told"), [([TOPIC], True), ([TOPIC, RETRY], False)])
async def test_a_configuration_without_a_retry_queue_is_logged(
    broker: ScriptedBroker, topics: list[str], told: bool
) -> None:
    """Java logs nothing, and no member handles the group's retries."""
    broker.create_topic(TOPIC)
    named = tuple(MessageQueue(topic, "a", 0) for topic in topics)
    with capture_logs() as logs:
        async with member(
            broker.peer.address, Seen(), allocate_strategy=AllocateStrategy("by_config", AllocateByConfig(named))
        ) as running:
            await eventually(lambda: running.owned() == {(TOPIC, 0)}, "it runs")
    assert [line["topic"] for line in logs if line["event"] == "rebalance.retries_left_out"] == [RETRY] * told


async def test_an_empty_list_of_members_changes_nothing(broker: ScriptedBroker) -> None:
    """After our heartbeat, a broker that knows the group lists at least us. Java blames its strategy."""
    broker.create_topic(TOPIC)
    async with member(broker.peer.address, Seen()) as running:
        await eventually(lambda: running.owned() == {(TOPIC, 0)}, "it has joined")
        list_members(broker)
        rebalance(running)
        await eventually(lambda: running.consumer.snapshot().problems, "it is reported")
        assert running.owned() == {(TOPIC, 0)}
        assert "does not know the group" in problem(running).evidence
        assert "`mqadmin updateSubGroup -c CLUSTER -g g1`" in (running.consumer.snapshot().not_ready_reason or "")
        list_members(broker, running.client.client_id)
        rebalance(running)
        await eventually(lambda: not running.consumer.snapshot().problems, "it is over")
        assert running.consumer.snapshot().ready
