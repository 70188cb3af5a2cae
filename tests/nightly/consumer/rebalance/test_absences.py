"""Two masters, and one of them dies: its queues wait for it, and everything else continues."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode
from rmqd.consumer.rebalance.membership import KEEP_QUEUES_SECONDS, MISSING_BROKER_SECONDS
from rmqd.consumer.rebalance.rebalance import MemberShare, QueueDivision
from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import Member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.two_masters import Two
from tests.seen import Seen
from tests.waiting import eventually


def place(broker: ScriptedBroker) -> MessageQueue:
    return MessageQueue(TOPIC, broker.name, 0)


def held(member: Member) -> dict[str, int]:
    """The number of queues that a member owns, by broker."""
    return dict(Counter(queue.broker for queue in member.consumer.snapshot().queues))


async def test_queues_of_a_dead_broker_wait_and_continue_at_their_offsets(
    two: Two, seen: Seen, flowing: ManualClock
) -> None:
    """The broker returns with older offsets. No message is handled twice, and the broker gets our offsets."""
    queue, other = place(two.b), place(two.a)
    await two.b.store(queue, b"b0", b"b1")
    with capture_logs() as logs:
        async with two.member(seen, clock=flowing) as m:
            await seen.has(b"b0", b"b1")
            await two.b.committed(GROUP, queue, 2)
            await two.b.peer.down()
            two.route(two.a)
            await eventually(lambda: [e for e in logs if e["event"] == "broker.away"], "it is logged")
            await two.a.store(other, b"a0")
            await seen.has(b"b0", b"b1", b"a0")
            await two.a.committed(GROUP, other, 1)
            assert {(queue.broker, queue.queue) for queue in m.consumer.snapshot().queues} >= {("a", 0), ("b", 0)}
            await eventually(lambda: m.consumer.snapshot().problems, "it is a problem of the group")
            assert "2 queues of this member wait for the broker" in m.consumer.snapshot().problems[0].evidence
            two.b.offsets[GROUP, queue] = 1
            await two.b.peer.listen()
            two.route(two.a, two.b)
            await two.b.committed(GROUP, queue, 2)
            await two.b.store(queue, b"b2")
            await seen.has(b"b0", b"b1", b"a0", b"b2")
            await two.b.committed(GROUP, queue, 3)
            assert m.topic().falls == {"operator": 0, "corrected": 0, "take_over": 0}
            await eventually(lambda: [e for e in logs if e["event"] == "broker.returned"], "the return is logged")
    assert two.b.commits_of(queue) == sorted(two.b.commits_of(queue))


async def test_messages_finished_while_their_broker_is_down_are_committed_later(two: Two, flowing: ManualClock) -> None:
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
            await eventually(lambda: [e for e in logs if e["event"] == "broker.away"], "it is logged")
        release.set()
        await two.b.peer.listen()
        two.route(two.a, two.b)
        await two.b.committed(GROUP, queue, 1)
    assert bodies == [b"b0"]


async def test_the_queues_of_a_broker_that_is_down_for_long_are_released(
    two: Two, seen: Seen, flowing: ManualClock
) -> None:
    async with two.member(seen, clock=flowing) as m:
        await eventually(lambda: len(m.owned()) == 1 and len(m.consumer.snapshot().queues) == 4, "it has all queues")
        await two.b.peer.down()
        two.route(two.a)
        with capture_logs() as logs:
            await eventually(lambda: [e for e in logs if e["event"] == "broker.away"], "it is logged")
        assert held(m) == {"a": 2, "b": 2}
        flowing.turn(KEEP_QUEUES_SECONDS)
        await eventually(lambda: held(m) == {"a": 2}, "they are released")


async def test_the_queues_of_a_broker_that_no_longer_serves_the_topic_are_released(
    two: Two, seen: Seen, flowing: ManualClock
) -> None:
    """The broker is up, and other routes name it. So an operator has removed the topic from it."""
    async with two.member(seen, clock=flowing, heartbeat_seconds=30.0) as m:
        await eventually(lambda: len(m.consumer.snapshot().queues) == 4, "it has all queues")
        with capture_logs() as logs:
            two.route(two.a, topics=(TOPIC,))
            await eventually(lambda: held(m) == {"a": 2, "b": 1}, "they are released")
        assert not [entry for entry in logs if entry["event"] == "broker.away"]


async def test_queues_of_a_broker_that_returns_during_a_pass_are_kept(
    two: Two, seen: Seen, flowing: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share is computed for routes without the broker, which is present again when the pass ends."""
    with capture_logs() as logs:
        async with two.member(seen, clock=flowing) as m:
            await eventually(lambda: held(m) == {"a": 2, "b": 2}, "it has all queues")
            await two.b.peer.down()
            two.route(two.a)
            await eventually(lambda: [e for e in logs if e["event"] == "broker.away"], "it is missing")
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


async def test_a_broker_that_is_in_no_route_for_a_moment_is_still_consumed(
    two: Two, seen: Seen, flowing: ManualClock
) -> None:
    """A restarted name server knows only one of the brokers at first."""
    async with two.member(seen, clock=flowing, heartbeat_seconds=30.0) as m:
        await eventually(lambda: len(m.consumer.snapshot().queues) == 4, "it has all queues")
        two.route(two.a)
        await eventually(lambda: not m.client.routes.brokers().keys() & {"b"}, "the route has come")
        await flowing.sleep(2 * MISSING_BROKER_SECONDS)
        await two.b.store(place(two.b), b"b0")
        await seen.has(b"b0")
        await two.b.committed(GROUP, place(two.b), 1)
        assert held(m) == {"a": 2, "b": 2}


async def test_a_silent_broker_delays_no_commit_to_another_broker(
    two: Two, seen: Seen, monkeypatch: pytest.MonkeyPatch, flowing: ManualClock
) -> None:
    monkeypatch.setattr(
        "rmqd.client.remoting.remoting_client.SILENCE_SECONDS", 600
    )  # the connection breaker must not help here
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
        await two.b.peer.down()  # otherwise the stop would wait for it


async def test_the_members_are_queried_at_a_reachable_broker(two: Two, seen: Seen, flowing: ManualClock) -> None:
    """The member does not wait for the broker that is down."""
    async with two.member(seen, clock=flowing) as m:
        await eventually(lambda: len(m.consumer.snapshot().queues) == 4, "it has all queues")
        await two.b.peer.down()
        await eventually(lambda: m.client.remoting.is_down(two.b.peer.address), "it is known to be down")
        addresses = [two.b.peer.address, two.a.peer.address]
        assert m.client.replicas.sorted_by_preference(addresses) == addresses[::-1]
        with capture_logs() as logs:
            await two.a.gain(GROUP, "x@1")
            await eventually(lambda: len(m.consumer.snapshot().queues) < 4, "queues are released")
        assert not [entry for entry in logs if entry["event"] == "rebalance.members_unknown"]
