"""A queue that comes to a known group begins at its first message; a new group begins where it is told, as a whole."""

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


async def test_a_message_that_makes_the_topic_as_the_group_starts_is_consumed(
    broker: ScriptedBroker, seen: Seen
) -> None:
    """All that the queue has was stored after the member started: the end of then was its first offset."""
    [queue] = broker.create_topic(TOPIC)
    broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, None)
    async with member(broker.peer.address, seen, **QUICK):
        await broker.peer.received(RequestCode.HEART_BEAT)
        await broker.store(queue, b"first", store_timestamp=int(time.time() * 1000) + 1)
        broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, broker.query)
        await broker.peer.received(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        broker.peer.cut()  # what was left unanswered is asked again
        await seen.has(b"first")


async def test_members_that_start_together_found_one_group(broker: ScriptedBroker) -> None:
    """None takes the other's first offsets for those of a known group, and consumes the whole backlog."""
    queues = broker.create_topic(TOPIC, 8)
    for queue in queues:
        await broker.store(queue, *[b"old"] * 9)
    one, another = Seen(), Seen()
    async with member(broker.peer.address, one, **QUICK) as a, member(broker.peer.address, another, **QUICK) as b:
        await eventually(lambda: len(a.owned() | b.owned()) == 8, "they have the queues")
        await eventually(lambda: all(map(broker.pulled_offsets, queues)), "all queues are pulled")
        for queue in queues:
            await broker.store(queue, b"new")
        await eventually(lambda: len(one.bodies + another.bodies) >= 8, "what is new is handled")
    assert one.bodies + another.bodies == [b"new"] * 8


@pytest.mark.parametrize("stored", [1, 4, 7])
async def test_a_founding_that_was_killed_is_brought_to_its_end(
    broker: ScriptedBroker, seen: Seen, stored: int
) -> None:
    """It had stored the offsets of some queues, from the highest on, and not yet the mark."""
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
    """Without any offset on the retry topic, as of a consumer that has none."""
    queues = broker.create_topic(TOPIC, 3)
    for queue in queues:
        await broker.store(queue, b"old")
    know(broker, *queues[:2], retries=False)
    async with member(broker.peer.address, seen, clock=flowing, **QUICK):
        await seen.has(b"old")


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


async def test_a_first_commit_that_the_broker_loses_is_made_again(broker: ScriptedBroker, seen: Seen) -> None:
    """RocketMQ answers two first commits that come at once with success, and keeps one of them."""
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
        await eventually(lambda: (GROUP, MessageQueue(RETRY, broker.name, 0)) in broker.offsets, "it is founded")
        assert [broker.offsets.get((GROUP, queue)) for queue in queues] == [1] * 4


async def test_a_known_group_is_asked_for_one_offset_a_queue(broker: ScriptedBroker, seen: Seen) -> None:
    """A restart costs what it must, and founds nothing."""
    queues = broker.create_topic(TOPIC, 4)
    know(broker, *queues)
    async with member(broker.peer.address, seen, poll_seconds=0.05):  # commits read offsets too, and are rare here
        pulled = [*queues, MessageQueue(RETRY, broker.name, 0)]
        await eventually(lambda: all(map(broker.pulled_offsets, pulled)), "all queues are pulled")
        asked = len(broker.peer.got(RequestCode.QUERY_CONSUMER_OFFSET))
    assert asked == len(pulled)


async def test_an_offset_below_zero_is_none(broker: ScriptedBroker, seen: Seen) -> None:
    """Groups may commit it, and a broker that tells it means nothing by it."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"old")
    know(broker)
    broker.offsets[GROUP, queue] = -1
    async with member(broker.peer.address, seen, **QUICK):
        await seen.has(b"old")
    assert min(broker.pulled_offsets(queue)) == 0


async def test_a_broker_that_is_silent_while_the_group_is_founded_is_neither_lost_nor_repeated(
    two: Two, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are consumed after a while. It begins, when it comes back, where it was when the group was founded."""
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


async def test_a_silent_broker_may_know_the_group(two: Two, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_brokers_of_4_9_say_0_where_they_have_nothing(
    broker: ScriptedBroker, seen: Seen, clock: ManualClock, known: bool
) -> None:
    """Which makes no group a known one. A young queue begins there in any group, an old one as it is told."""
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
    # what looks like another's founding gets its time; a founder's time stands still, so that it commits nothing before
    wait = clock.until if known else eventually
    async with member(broker.peer.address, seen, clock=clock, **QUICK):
        await wait(lambda: all(map(broker.pulled_offsets, queues)), "all queues are pulled")
    assert [broker.pulled_offsets(queue)[0] for queue in queues] == ([1, 1, 50] if known else [0, 0, 51])
