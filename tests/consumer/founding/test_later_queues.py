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


@pytest.mark.slow
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


async def test_nothing_is_passed_over_where_the_topic_grows_while_the_group_is_away(
    broker: ScriptedBroker, seen: Seen
) -> None:
    """From its first kept message, also where the first ones are gone."""
    queues = broker.create_topic(TOPIC, 3)
    broker.first[queues[2]] = 100
    for queue in queues:
        await broker.store(queue, b"old")
    know(broker, *queues[:2])
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, **QUICK):
            await seen.has(b"old")
            await broker.committed(GROUP, queues[2], 101)
    starts = starts_in(logs)
    assert [starts[str(queue)] for queue in queues] == [(1, "committed"), (1, "committed"), (100, "later_queue")]


@pytest.mark.slow
async def test_nothing_is_passed_over_in_a_topic_that_is_made_while_the_group_waits_for_it(
    broker: ScriptedBroker, seen: Seen
) -> None:
    """In a group that is new everywhere: its other topic begins at the end."""
    [other] = broker.create_topic("other")
    await broker.store(other, b"old")
    async with member(broker.peer.address, seen, subscriptions=[TOPIC, "other"], **QUICK) as one:
        await eventually(lambda: one.owned() == {("other", 0)}, "it has what there is")
        made = MessageQueue(TOPIC, broker.name, 0)
        broker.messages[made] = []
        await broker.store(made, b"first")
        broker.create_topic(TOPIC)
        await seen.has(b"first")


@pytest.mark.slow
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


async def test_a_founder_that_is_under_way_is_waited_for_where_the_order_does_not_show_it(
    broker: ScriptedBroker, seen: Seen
) -> None:
    """Two topics of one queue each: the offset of the first one alone may be all that a known group has."""
    [done], [missing] = broker.create_topic("done"), broker.create_topic(TOPIC)
    await broker.store(missing, b"old")
    know(broker, done, retries=False)
    async with member(broker.peer.address, seen, subscriptions=["done", TOPIC], **QUICK):
        await broker.peer.received(RequestCode.QUERY_CONSUMER_OFFSET, 8)
        know(broker, missing)
        await eventually(lambda: broker.pulled_offsets(missing), "the queue is pulled")
    assert broker.pulled_offsets(missing)[0] == 1


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


async def test_a_known_group_is_asked_for_one_offset_a_queue(broker: ScriptedBroker, seen: Seen) -> None:
    """A restart costs what it must, and founds nothing."""
    queues = broker.create_topic(TOPIC, 4)
    know(broker, *queues)
    async with member(broker.peer.address, seen, **QUICK):
        await eventually(lambda: all(map(broker.pulled_offsets, queues)), "all queues are pulled")
        asked = len(broker.peer.got(RequestCode.QUERY_CONSUMER_OFFSET))
    assert asked <= len(queues) + 1  # and the retry topic's


async def test_an_offset_below_zero_is_none(broker: ScriptedBroker, seen: Seen) -> None:
    """Groups may commit it, and a broker that tells it means nothing by it."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"old")
    know(broker)
    broker.offsets[GROUP, queue] = -1
    async with member(broker.peer.address, seen, **QUICK):
        await seen.has(b"old")
    assert min(broker.pulled_offsets(queue)) == 0


async def test_a_queue_of_which_a_slave_knows_no_offset_waits_for_its_master(
    two: Two, seen: Seen, monkeypatch: pytest.MonkeyPatch, flowing: ManualClock
) -> None:
    """The slave copies offsets every 10 s: nothing is handled again that was committed just before the master went."""
    monkeypatch.setattr("rmqd.consumer.pull.backoff.EXCEPTION_DELAY_SECONDS", 0.05)
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


@pytest.mark.slow
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
