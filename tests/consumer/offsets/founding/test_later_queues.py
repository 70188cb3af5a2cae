"""Start offsets of queues added to a known group, and of a new group as a whole."""

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
    """A broker that knows only the offsets that a test stores."""
    broker.knows_groups = False
    return broker


@pytest.fixture
def two(two: Two) -> Two:
    """Two masters that know only the offsets that a test stores."""
    two.forget_groups()
    return two


def starts_in(logs: list[Any]) -> dict[str, tuple[int, str]]:
    """The last start offset of each queue, and its reason."""
    return {entry["queue"]: (entry["offset"], entry["why"]) for entry in logs if entry["event"] == "queue.started"}


def know(broker: ScriptedBroker, *queues: MessageQueue, retries: bool = True) -> None:
    """Store offsets at the end of these queues, as an existing group has them."""
    for queue in queues:
        broker.offsets[GROUP, queue] = broker.end(queue)
    if retries:
        broker.offsets[GROUP, MessageQueue(RETRY, broker.name, 0)] = 0


@pytest.mark.parametrize("where", WHERES)
async def test_a_queue_added_to_a_running_groups_topic_is_consumed_from_its_start(
    broker: ScriptedBroker, seen: Seen, where: str
) -> None:
    """Messages sent to the new queue before the member noticed it are consumed."""
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


async def test_the_queues_of_an_added_broker_are_consumed_from_their_start(two: Two, seen: Seen) -> None:
    """Both while the group runs and while it is stopped."""
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
async def test_a_new_group_stores_start_offsets_in_all_queues_at_once(
    broker: ScriptedBroker, seen: Seen, where: str
) -> None:
    """Other members' queues are included, so they do not count as added later. The mark is stored last."""
    queues = broker.create_topic(TOPIC, 8)
    broker.members[GROUP].append("0.0.0.0@another")
    for queue in queues:
        await broker.store(queue, b"x", b"x", store_timestamp=1000)
    options = QUICK | {"consume_from_where": where, "consume_timestamp_ms": 1000}
    async with member(broker.peer.address, seen, **options) as one:
        await eventually(lambda: len(one.owned()) == 4, "it has its share")
        owned = {MessageQueue(topic, broker.name, number) for topic, number in one.owned()}
        others = set(queues) - owned
        if where == "first_offset":  # later queues start there too, so nothing is stored
            assert not any((GROUP, queue) in broker.offsets for queue in others)
            return
        assert {broker.offsets[GROUP, queue] for queue in others} == {0 if where == "timestamp" else 2}
        order = [queue for queue, _ in broker.commits]
        assert order.index(MessageQueue(RETRY, broker.name, 0)) > max(order.index(queue) for queue in queues)


async def test_a_founder_does_not_overwrite_stored_offsets(broker: ScriptedBroker, seen: Seen) -> None:
    """Another member commits an offset while the founder stores start offsets."""
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


async def test_a_queue_without_an_offset_at_a_slave_waits_for_its_master(
    two: Two, seen: Seen, monkeypatch: pytest.MonkeyPatch, flowing: ManualClock
) -> None:
    """Slaves copy offsets every 10 s, so the slave may lack the master's last commit."""
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


async def test_a_queue_whose_offset_was_lost_continues_where_this_member_released_it(
    broker: ScriptedBroker, seen: Seen
) -> None:
    """Another member owned the queue meanwhile, and the broker lost its offset."""
    queues = broker.create_topic(TOPIC, 2)
    know(broker, *queues)
    async with member(broker.peer.address, seen, **QUICK) as one:
        await eventually(lambda: len(one.owned()) == 2, "it has both queues")
        await broker.store(queues[0], b"x")
        await broker.store(queues[1], b"x")
        await broker.committed(GROUP, queues[0], 1)
        await broker.committed(GROUP, queues[1], 1)
        await broker.gain(GROUP, "0.0.0.0@another")
        await eventually(lambda: len(one.owned()) == 1, "one queue is released")
        broker.offsets.pop((GROUP, queues[0]))
        before = len(broker.pulls)
        await broker.lose("0.0.0.0@another")
        await eventually(lambda: broker.pulls[before:] and len(one.owned()) == 2, "it has both again")
    assert seen.bodies == [b"x", b"x"]
    assert min(broker.pulled_offsets(queues[0])[-1:]) == 1
