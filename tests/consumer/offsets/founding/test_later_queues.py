"""A queue that comes to a known group begins at its first message; a new group begins where it is told, as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.two_masters import Two
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("unpaced")

WHERES = ["last_offset", "first_offset", "timestamp"]
RETRY = retry_topic(GROUP)
QUICK: dict[str, Any] = {
    "poll_seconds": 0.05,
    "persist_consumer_offset_interval_seconds": 0.05,
}


@pytest.fixture
def broker(broker: ScriptedBroker) -> ScriptedBroker:
    """One that knows of a group what a test says, and nothing else."""
    broker.knows_groups = False
    return broker


@pytest.fixture
def two(two: Two) -> Two:
    """The same, of two masters."""
    two.forget_groups()
    return two


def starts_in(logs: list[Any]) -> dict[str, tuple[int, str]]:
    """Where queues started and why, by queue; the last word of each."""
    return {entry["queue"]: (entry["offset"], entry["why"]) for entry in logs if entry["event"] == "queue.started"}


def know(broker: ScriptedBroker, *queues: MessageQueue, retries: bool = True) -> None:
    """The group was here before, and is at the end of these queues."""
    for queue in queues:
        broker.offsets[GROUP, queue] = broker.end(queue)
    if retries:
        broker.offsets[GROUP, MessageQueue(RETRY, broker.name, 0)] = 0


@pytest.mark.parametrize("where", WHERES)
async def test_nothing_is_passed_over_where_the_topic_of_a_running_group_grows(
    broker: ScriptedBroker, seen: Seen, where: str
) -> None:
    """What was sent to the new queue before the member learned of it, is consumed."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"old")
    options = QUICK | {"consume_from_where": where, "consume_timestamp_ms": 5000}
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, **options) as one:
            await eventually(lambda: one.owned() == {(TOPIC, 0)}, "it has the queue")
            del seen.bodies[:]
            later = MessageQueue(TOPIC, broker.name, 1)
            broker.messages[later] = []
            await broker.store(later, b"first", b"second", store_timestamp=1000)
            broker.create_topic(TOPIC, 2)
            await eventually(lambda: set(seen.bodies) >= {b"first", b"second"}, "both are handled")
            await broker.committed(GROUP, later, 2)
    why = "first_offset" if where == "first_offset" else "later_queue"
    assert starts_in(logs)[str(later)] == (0, why)


async def test_nothing_is_passed_over_at_a_broker_that_is_added(two: Two, seen: Seen) -> None:
    """While the group runs, and while it is away."""
    [queue] = two.a.create_topic(TOPIC)
    two.route(two.a)
    know(two.a, queue)
    await two.b.store(MessageQueue(TOPIC, "b", 0), b"b0")
    async with two.member(seen) as one:
        await eventually(lambda: one.owned() == {(TOPIC, 0)}, "it has the first broker's queue")
        two.route(two.a, two.b)
        await seen.has(b"b0")
    two.b.offsets.clear()
    async with two.member(seen):
        await seen.has(b"b0", b"b0")


@pytest.mark.parametrize("where", WHERES)
async def test_a_new_group_is_founded_in_all_queues_at_once(broker: ScriptedBroker, seen: Seen, where: str) -> None:
    """Also in those of other members, so that nobody takes them for later ones; the mark of the group comes last."""
    queues = broker.create_topic(TOPIC, 8)
    broker.members[GROUP].append("0.0.0.0@another")
    for queue in queues:
        await broker.store(queue, b"x", b"x", store_timestamp=1000)
    options = QUICK | {"consume_from_where": where, "consume_timestamp_ms": 1000}
    async with member(broker.peer.address, seen, **options) as one:
        await eventually(lambda: len(one.owned()) == 4, "it has its share")
        owned = {MessageQueue(topic, broker.name, number) for topic, number in one.owned()}
        others = set(queues) - owned
        if where == "first_offset":  # which is where later queues begin, too: nothing needs to be written down
            assert not any((GROUP, queue) in broker.offsets for queue in others)
            return
        assert {broker.offsets[GROUP, queue] for queue in others} == {0 if where == "timestamp" else 2}
        order = [queue for queue, _ in broker.commits]
        assert order.index(MessageQueue(RETRY, broker.name, 0)) > max(order.index(queue) for queue in queues)


async def test_a_founder_writes_over_nothing(broker: ScriptedBroker, seen: Seen) -> None:
    """Another member had a queue first, and consumed on while the founder was busy with the others."""
    queues = broker.create_topic(TOPIC, 2)
    for queue in queues:
        await broker.store(queue, b"old", b"old")

    def commit_the_other_first(command: RemotingCommand) -> Reply:
        broker.offsets.setdefault((GROUP, queues[0]), 1)
        return broker.update(command)

    broker.peer.on(RequestCode.UPDATE_CONSUMER_OFFSET, commit_the_other_first)
    async with member(broker.peer.address, seen, **QUICK):
        await broker.committed(GROUP, queues[0], 2)
    assert seen.bodies == [b"old"]


async def test_a_queue_of_which_a_slave_knows_no_offset_waits_for_its_master(
    two: Two, seen: Seen, monkeypatch: pytest.MonkeyPatch, flowing: ManualClock
) -> None:
    """The slave copies offsets every 10 s: nothing is handled again that was committed just before the master went."""
    monkeypatch.setattr("rmqd.consumer.pull.pull_request.FAILED_PULL_PAUSE_SECONDS", 0.05)
    b = MessageQueue(TOPIC, "b", 0)
    await two.b.store(b, b"old")
    know(two.a, MessageQueue(TOPIC, "a", 0))
    two.route(two.a, two.b, slaves="b")
    async with two.member(seen, clock=flowing):
        await two.b.peer.received(RequestCode.QUERY_CONSUMER_OFFSET, 8)
        assert not two.b.pulled_offsets(b)
        know(two.b, b)
        two.route(two.a, two.b)
        await two.b.store(b, b"new")
        await seen.has(b"new")
    assert seen.bodies == [b"new"]


async def test_a_queue_that_the_broker_lost_goes_on_where_this_member_left_it(
    broker: ScriptedBroker, seen: Seen
) -> None:
    """It went to another member for a while, and came back without an offset."""
    queues = broker.create_topic(TOPIC, 2)
    know(broker, *queues)
    async with member(broker.peer.address, seen, **QUICK) as one:
        await eventually(lambda: len(one.owned()) == 2, "it has both queues")
        await broker.store(queues[0], b"x")
        await broker.store(queues[1], b"x")
        await broker.committed(GROUP, queues[0], 1)
        await broker.committed(GROUP, queues[1], 1)
        await broker.gain(GROUP, "0.0.0.0@another")
        await eventually(lambda: len(one.owned()) == 1, "it gave one up")
        broker.offsets.pop((GROUP, queues[0]))
        before = len(broker.pulls)
        await broker.lose("0.0.0.0@another")
        await eventually(lambda: broker.pulls[before:] and len(one.owned()) == 2, "it has both again")
    assert seen.bodies == [b"x", b"x"]
    assert min(broker.pulled_offsets(queues[0])[-1:]) == 1
