"""A queue added to a known group starts at its first message. A new group starts as configured, as a whole."""

from __future__ import annotations

import time

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.offsets.founding.test_later_queues import QUICK, RETRY, broker, know, starts_in, two
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.two_masters import Two
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["broker", "two"]

pytestmark = pytest.mark.usefixtures("unpaced")


async def test_no_message_is_skipped_if_the_topic_grows_while_the_group_is_stopped(
    broker: ScriptedBroker, seen: Seen
) -> None:
    """The new queue starts at its first kept message, even if earlier ones were deleted."""
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
async def test_no_message_is_skipped_in_a_topic_created_while_the_group_waits(
    broker: ScriptedBroker, seen: Seen
) -> None:
    """The group is new everywhere, so its other topic starts at the end."""
    [other] = broker.create_topic("other")
    await broker.store(other, b"old")
    async with member(broker.peer.address, seen, subscriptions=[TOPIC, "other"], **QUICK) as one:
        await eventually(lambda: one.owned() == {("other", 0)}, "it owns the existing queue")
        made = MessageQueue(TOPIC, broker.name, 0)
        broker.messages[made] = []
        await broker.store(made, b"first")
        broker.create_topic(TOPIC)
        await seen.has(b"first")


async def test_the_message_that_creates_the_topic_during_the_start_is_consumed(
    broker: ScriptedBroker, seen: Seen
) -> None:
    """All messages were stored after the member started, so the end at that time was the first offset."""
    [queue] = broker.create_topic(TOPIC)
    broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, None)
    async with member(broker.peer.address, seen, **QUICK):
        await broker.peer.received(RequestCode.HEART_BEAT)
        await broker.store(queue, b"first", store_timestamp=int(time.time() * 1000) + 1)
        broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, broker.query)
        await broker.peer.received(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        broker.peer.cut()  # unanswered requests are sent again
        await seen.has(b"first")


async def test_members_that_start_together_start_one_new_group(broker: ScriptedBroker) -> None:
    """No member mistakes the other's first offsets for a known group, and consumes the whole backlog."""
    queues = broker.create_topic(TOPIC, 8)
    for queue in queues:
        await broker.store(queue, *[b"old"] * 9)
    one, another = Seen(), Seen()
    async with member(broker.peer.address, one, **QUICK) as a, member(broker.peer.address, another, **QUICK) as b:
        await eventually(lambda: len(a.owned() | b.owned()) == 8, "they have the queues")
        await eventually(lambda: all(map(broker.pulled_offsets, queues)), "all queues are pulled")
        for queue in queues:
            await broker.store(queue, b"new")
        await eventually(lambda: len(one.bodies + another.bodies) >= 8, "the new messages are handled")
    assert one.bodies + another.bodies == [b"new"] * 8


@pytest.mark.parametrize("stored", [1, 4, 7])
async def test_an_interrupted_start_of_a_group_is_completed(broker: ScriptedBroker, seen: Seen, stored: int) -> None:
    """A killed member had stored the offsets of some queues, from the highest on, but not the mark."""
    queues = broker.create_topic(TOPIC, 8)
    for queue in queues:
        await broker.store(queue, b"old")
    know(broker, *queues[-stored:], retries=False)
    async with member(broker.peer.address, seen, **QUICK) as one:
        await eventually(lambda: len(one.owned()) == 8, "it has the queues")
        assert [broker.offsets[GROUP, queue] for queue in queues] == [1] * 8
        await eventually(lambda: all(map(broker.pulled_offsets, queues)), "all queues are pulled")
    assert not seen.bodies


async def test_offsets_of_another_client_make_a_known_group(
    broker: ScriptedBroker, seen: Seen, flowing: ManualClock
) -> None:
    """There is no offset on the retry topic, as with a consumer without retries."""
    queues = broker.create_topic(TOPIC, 3)
    for queue in queues:
        await broker.store(queue, b"old")
    know(broker, *queues[:2], retries=False)
    async with member(broker.peer.address, seen, clock=flowing, **QUICK):
        await seen.has(b"old")


async def test_a_member_that_may_be_storing_start_offsets_is_waited_for(broker: ScriptedBroker, seen: Seen) -> None:
    """With two topics of one queue each, the only offset may also belong to a known group."""
    [done], [missing] = broker.create_topic("done"), broker.create_topic(TOPIC)
    await broker.store(missing, b"old")
    know(broker, done, retries=False)
    async with member(broker.peer.address, seen, subscriptions=["done", TOPIC], **QUICK):
        await broker.peer.received(RequestCode.QUERY_CONSUMER_OFFSET, 8)
        know(broker, missing)
        await eventually(lambda: broker.pulled_offsets(missing), "the queue is pulled")
    assert broker.pulled_offsets(missing)[0] == 1


async def test_a_lost_first_commit_is_sent_again(broker: ScriptedBroker, seen: Seen) -> None:
    """RocketMQ answers two simultaneous first commits with success, and keeps one of them."""
    queues = broker.create_topic(TOPIC, 4)
    for queue in queues:
        await broker.store(queue, b"old")
    lost: list[RemotingCommand] = []

    def lose_the_first(command: RemotingCommand) -> Reply:
        if not lost:
            lost.append(command)
            return Reply()
        return broker.update(command)

    broker.peer.on(RequestCode.UPDATE_CONSUMER_OFFSET, lose_the_first)
    broker.members[GROUP].append("0.0.0.0@another")
    async with member(broker.peer.address, seen, **QUICK) as one:
        await eventually(lambda: len(one.owned()) == 2, "it has its share")
        await eventually(lambda: (GROUP, MessageQueue(RETRY, broker.name, 0)) in broker.offsets, "the group is marked")
        assert [broker.offsets.get((GROUP, queue)) for queue in queues] == [1] * 4


async def test_a_known_group_costs_one_offset_query_per_queue(broker: ScriptedBroker, seen: Seen) -> None:
    queues = broker.create_topic(TOPIC, 4)
    know(broker, *queues)
    async with member(broker.peer.address, seen, poll_seconds=0.05):  # commits read offsets too, and are rare here
        pulled = [*queues, MessageQueue(RETRY, broker.name, 0)]
        await eventually(lambda: all(map(broker.pulled_offsets, pulled)), "all queues are pulled")
        asked = len(broker.peer.got(RequestCode.QUERY_CONSUMER_OFFSET))
    assert asked == len(pulled)


async def test_a_negative_offset_counts_as_no_offset(broker: ScriptedBroker, seen: Seen) -> None:
    """Groups may commit it, and brokers return it without a meaning."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"old")
    know(broker)
    broker.offsets[GROUP, queue] = -1
    async with member(broker.peer.address, seen, **QUICK):
        await seen.has(b"old")
    assert min(broker.pulled_offsets(queue)) == 0


async def test_a_broker_that_is_silent_during_the_start_loses_and_repeats_nothing(
    two: Two, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other broker is consumed after a while. The silent one's queue starts at its offset of the group's start."""
    monkeypatch.setattr("rmqd.consumer.offsets.start_offsets.BROKER_GRACE_SECONDS", 0.1)
    monkeypatch.setattr("rmqd.consumer.offsets.start_offsets.CLOCK_TOLERANCE_MS", 0)
    monkeypatch.setattr("rmqd.consumer.pull.pull_request.FAILED_PULL_PAUSE_SECONDS", 0.05)
    a, b = MessageQueue(TOPIC, "a", 0), MessageQueue(TOPIC, "b", 0)
    await two.a.store(a, b"old")
    await two.b.store(b, b"old", store_timestamp=1000)
    await two.b.peer.down()
    async with two.member(seen):
        await eventually(lambda: two.a.pulled_offsets(a), "the queue of the other broker is pulled")
        await two.a.store(a, b"a0")
        await seen.has(b"a0")
        await two.b.store(b, b"b0", store_timestamp=int(time.time() * 1000) + 1)
        await two.b.peer.listen()
        await seen.has(b"a0", b"b0")


async def test_a_silent_broker_that_may_know_the_group_is_waited_for(
    two: Two, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is decided without it at first: the queues of the other broker may be later ones."""
    monkeypatch.setattr("rmqd.consumer.pull.pull_request.FAILED_PULL_PAUSE_SECONDS", 0.05)
    a, b = MessageQueue(TOPIC, "a", 0), MessageQueue(TOPIC, "b", 0)
    await two.a.store(a, b"a0")
    know(two.b, b)
    await two.b.peer.down()
    with capture_logs() as logs:
        async with two.member(seen):
            await two.a.peer.received(RequestCode.QUERY_CONSUMER_OFFSET, 8)
            assert not two.a.pulls
            await two.b.peer.listen()
            await seen.has(b"a0")
    assert starts_in(logs)[str(a)] == (0, "later_queue")


@pytest.mark.parametrize("known", [False, True])
async def test_brokers_of_4_9_return_0_for_a_missing_offset(
    broker: ScriptedBroker, seen: Seen, clock: ManualClock, known: bool
) -> None:
    """This does not make a group known. A young queue starts at 0 in any group, an old one as configured."""
    broker.peer.version = 407
    queues = broker.create_topic(TOPIC, 3)
    for queue in queues:
        await broker.store(queue, b"x")
    if known:
        know(broker, *queues[:2], retries=False)
    broker.first[queues[2]] = 50  # its first messages are gone

    def query(command: RemotingCommand) -> Reply:
        reply = broker.query(command)
        is_old = command.ext_fields["topic"] == TOPIC and command.ext_fields["queueId"] == "2"
        return reply if reply.code == ResponseCode.SUCCESS or is_old else Reply(ext_fields={"offset": "0"})

    broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, query)
    # a start suspected of another member gets its time; otherwise the clock stops, so no commit is sent before
    wait = clock.until if known else eventually
    async with member(broker.peer.address, seen, clock=clock, **QUICK):
        await wait(lambda: all(map(broker.pulled_offsets, queues)), "all queues are pulled")
    assert [broker.pulled_offsets(queue)[0] for queue in queues] == ([1, 1, 50] if known else [0, 0, 51])
