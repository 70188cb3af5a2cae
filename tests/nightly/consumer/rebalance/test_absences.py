"""Two masters, and one of them dies: its queues wait for it, and everything else goes on."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode
from rmqd.consumer.rebalance.membership import KEEP_QUEUES_SECONDS, MISSING_BROKER_SECONDS
from rmqd.consumer.rebalance.rebalance import MemberShare, QueueDivision
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.group_headers import GetConsumerListByGroupRequestHeader
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.two_masters import Two
from tests.seen import Seen
from tests.waiting import eventually

LIST = RequestCode.GET_CONSUMER_LIST_BY_GROUP


def place(broker: ScriptedBroker) -> MessageQueue:
    return MessageQueue(TOPIC, broker.name, 0)


def held(member: Member) -> dict[str, int]:
    """How many queues of which broker a member has."""
    return dict(Counter(queue.broker for queue in member.consumer.snapshot().queues))


async def test_queues_of_a_dead_broker_wait_for_it_and_go_on_where_they_were(
    two: Two, seen: Seen, flowing: ManualClock
) -> None:
    """It comes back with offsets of a while ago: nothing is handled twice, and the broker gets ours."""
    queue, other = place(two.b), place(two.a)
    await two.b.store(queue, b"b0", b"b1")
    with capture_logs() as logs:
        async with two.member(seen, clock=flowing) as m:
            await seen.has(b"b0", b"b1")
            await two.b.committed(GROUP, queue, 2)
            await two.b.peer.down()
            two.route(two.a)
            await eventually(lambda: [e for e in logs if e["event"] == "broker.away"], "it is said")
            await two.a.store(other, b"a0")
            await seen.has(b"b0", b"b1", b"a0")
            await two.a.committed(GROUP, other, 1)
            assert {(queue.broker, queue.queue) for queue in m.consumer.snapshot().queues} >= {("a", 0), ("b", 0)}
            await eventually(lambda: m.consumer.snapshot().problems, "it is a problem of the group")
            assert "2 queues of b here wait for it" in m.consumer.snapshot().problems[0].evidence
            two.b.offsets[GROUP, queue] = 1
            await two.b.peer.listen()
            two.route(two.a, two.b)
            await two.b.committed(GROUP, queue, 2)
            await two.b.store(queue, b"b2")
            await seen.has(b"b0", b"b1", b"a0", b"b2")
            await two.b.committed(GROUP, queue, 3)
            assert m.topic().falls == {"operator": 0, "corrected": 0, "take_over": 0}
            await eventually(lambda: [e for e in logs if e["event"] == "broker.returned"], "that is said, too")
    assert two.b.commits_of(queue) == sorted(two.b.commits_of(queue))


async def test_what_a_handler_finishes_while_its_broker_is_away_is_committed_later(
    two: Two, flowing: ManualClock
) -> None:
    queue, release = place(two.b), asyncio.Event()
    bodies: list[bytes] = []

    async def handle(batch: Any) -> None:
        bodies.extend(message.body for message in batch)
        await release.wait()

    await two.b.store(queue, b"b0")
    async with two.member(handle, clock=flowing):
        await eventually(lambda: bodies == [b"b0"], "a handler has it")
        with capture_logs() as logs:
            await two.b.peer.down()
            two.route(two.a)
            await eventually(lambda: [e for e in logs if e["event"] == "broker.away"], "it is said")
        release.set()
        await two.b.peer.listen()
        two.route(two.a, two.b)
        await two.b.committed(GROUP, queue, 1)
    assert bodies == [b"b0"]


async def test_a_broker_that_is_away_for_long_is_given_up(two: Two, seen: Seen, flowing: ManualClock) -> None:
    async with two.member(seen, clock=flowing) as m:
        await eventually(lambda: len(m.owned()) == 1 and len(m.consumer.snapshot().queues) == 4, "it has all queues")
        await two.b.peer.down()
        two.route(two.a)
        with capture_logs() as logs:
            await eventually(lambda: [e for e in logs if e["event"] == "broker.away"], "it is said")
        assert held(m) == {"a": 2, "b": 2}
        flowing.turn(KEEP_QUEUES_SECONDS)
        await eventually(lambda: held(m) == {"a": 2}, "they are given up")


async def test_a_broker_that_serves_the_topic_no_more_is_given_up(two: Two, seen: Seen, flowing: ManualClock) -> None:
    """It is there, and other routes name it: whoever took the topic from it meant it."""
    async with two.member(seen, clock=flowing, heartbeat_seconds=30.0) as m:
        await eventually(lambda: len(m.consumer.snapshot().queues) == 4, "it has all queues")
        with capture_logs() as logs:
            two.route(two.a, topics=(TOPIC,))
            await eventually(lambda: held(m) == {"a": 2, "b": 1}, "they are given up")
        assert not [entry for entry in logs if entry["event"] == "broker.away"]


async def test_queues_of_a_broker_that_returns_during_a_pass_are_kept(
    two: Two, seen: Seen, flowing: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its share was told for routes without the broker, which counts as present by its end."""
    with capture_logs() as logs:
        async with two.member(seen, clock=flowing) as m:
            await eventually(lambda: held(m) == {"a": 2, "b": 2}, "it has all queues")
            await two.b.peer.down()
            two.route(two.a)
            await eventually(lambda: [e for e in logs if e["event"] == "broker.away"], "it is away")
            right = QueueDivision.share_of

            async def share_of(*arguments: Any) -> MemberShare | None:
                share = await right(*arguments)
                if "b" not in m.client.routes.brokers():
                    two.route(two.a, two.b)
                    await m.client.routes.refresh(TOPIC)
                return share

            monkeypatch.setattr(QueueDivision, "share_of", share_of)
            await two.b.peer.listen()
            await eventually(lambda: [e for e in logs if e["event"] == "broker.returned"], "it is back")
            await two.b.store(place(two.b), b"b0")
            await seen.has(b"b0")
    given_up = [queue for e in logs if e["event"] == "rebalance.changed" for queue in e["given_up"]]
    assert not given_up


async def test_a_broker_that_is_in_no_route_for_a_moment_is_consumed_on(
    two: Two, seen: Seen, flowing: ManualClock
) -> None:
    """A name server that was restarted has heard of one broker, and not of the other one yet."""
    async with two.member(seen, clock=flowing, heartbeat_seconds=30.0) as m:
        await eventually(lambda: len(m.consumer.snapshot().queues) == 4, "it has all queues")
        two.route(two.a)
        await eventually(lambda: not m.client.routes.brokers().keys() & {"b"}, "the route has come")
        await flowing.sleep(2 * MISSING_BROKER_SECONDS)
        await two.b.store(place(two.b), b"b0")
        await seen.has(b"b0")
        await two.b.committed(GROUP, place(two.b), 1)
        assert held(m) == {"a": 2, "b": 2}


async def test_a_silent_broker_delays_no_commit_to_another_one(
    two: Two, seen: Seen, monkeypatch: pytest.MonkeyPatch, flowing: ManualClock
) -> None:
    """Nor the rebalance, which asks the one that answers."""
    monkeypatch.setattr(
        "rmqd.client.remoting.remoting_client.SILENCE_SECONDS", 600
    )  # the breaker is not what helps here
    monkeypatch.setattr("rmqd.consumer.offsets.broker_store.OFFSET_TIMEOUT_SECONDS", 600)
    await two.b.store(place(two.b), b"b0")
    async with two.member(seen, clock=flowing):
        await seen.has(b"b0")
        for code in RequestCode:
            two.b.peer.on(code, None)
        of_rounds = "GET_MAX_OFFSET", "QUERY_CONSUMER_OFFSET", "UPDATE_CONSUMER_OFFSET"
        under_way = [RequestCode[name] for name in of_rounds]
        before = sum(len(two.b.peer.got(code)) for code in under_way)
        await two.b.store(place(two.b), b"b1")
        await eventually(lambda: sum(len(two.b.peer.got(code)) for code in under_way) > before, "a round has begun")
        for number in range(3):
            await two.a.store(place(two.a), b"a%d" % number)
            await two.a.committed(GROUP, place(two.a), number + 1)
        await two.b.peer.down()  # or it would be waited for at the end


async def test_members_are_asked_of_a_broker_that_answers(two: Two, seen: Seen, flowing: ManualClock) -> None:
    """Where one is down, it is not waited for."""
    async with two.member(seen, clock=flowing) as m:
        await eventually(lambda: len(m.consumer.snapshot().queues) == 4, "it has all queues")
        await two.b.peer.down()
        await eventually(lambda: m.client.remoting.is_down(two.b.peer.address), "it is known to be down")
        addresses = [two.b.peer.address, two.a.peer.address]
        assert m.client.replicas.sorted_by_preference(addresses) == addresses[::-1]
        with capture_logs() as logs:
            await two.a.gain(GROUP, "x@1")
            await eventually(lambda: len(m.consumer.snapshot().queues) < 4, "queues are given up")
        assert not [entry for entry in logs if entry["event"] == "rebalance.members_unknown"]


async def test_a_broker_that_is_back_for_a_moment_is_not_believed_about_who_is_gone(
    broker: ScriptedBroker, seen: Seen, flowing: ManualClock
) -> None:
    """It knows who has told it since. The others do within seconds, and keep their queues until then."""
    broker.create_topic(TOPIC, 4)
    broker.members[GROUP].append("~other@1")
    async with member(broker.peer.address, seen, clock=flowing, heartbeat_seconds=0.3) as m:
        await eventually(lambda: m.owned() == {(TOPIC, 0), (TOPIC, 1)}, "it has its half")
        asked: list[str] = []

        def forgetful(command: RemotingCommand) -> Reply:
            header = GetConsumerListByGroupRequestHeader.from_ext_fields(command.ext_fields)
            asked.append(header.consumer_group)
            return broker._list(command)

        broker.members[GROUP].remove("~other@1")
        broker.peer.on(LIST, forgetful)
        broker.peer.cut()
        await broker.gain("nobody", "x")
        m.consumer.on_consumer_ids_changed()
        await eventually(lambda: len(asked) > 2, "it is asked again and again")
        assert m.owned() == {(TOPIC, 0), (TOPIC, 1)}
        await eventually(lambda: len(m.owned()) == 4, "who has not come back is gone")
