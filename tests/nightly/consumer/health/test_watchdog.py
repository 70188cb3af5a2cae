"""Queues of a scripted broker that stand still: what is told of them, and that they go on."""

from __future__ import annotations

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import TOPIC, Blocked
from tests.consumer.health.test_watchdog import Logs, events, goes_on, logs, stall, stands_still, state
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["logs"]


async def test_a_queue_whose_slots_others_have_says_so(
    broker: ScriptedBroker, logs: Logs, flowing: ManualClock
) -> None:
    """Its own messages have not reached a handler yet."""
    first, second = broker.create_topic(TOPIC, 2)
    handle = Blocked()
    await broker.store(first, b"0", b"1")
    async with member(broker.peer.address, handle, clock=flowing, concurrency=1) as m:
        await eventually(lambda: state(m, 0) == "handling", "the only slot is taken")
        await broker.store(second, b"2")
        problem = await stands_still(m, logs, "slow_handler", 1)
        assert "all 1 slots" in problem.evidence
        handle.release.set()
        await eventually(lambda: stall(m, 0) is None and stall(m, 1) is None, "both go on")


async def test_a_pause_is_told_and_keeps_its_state(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """Nothing more is wrong: it is told as information."""
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "it pulls")
        m.consumer.pause()
        await broker.store(queue, b"0", b"1")
        await stands_still(m, logs, "paused")
        assert state(m) == "paused"
        m.consumer.resume()
        await seen.has(b"0", b"1")
        await goes_on(m, logs, "paused")
    assert events(logs, "queue.stalled")[0]["log_level"] == "info"


async def test_a_broker_that_answers_again_ends_it_before_the_next_pull_does(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """That is held while nothing comes, and says nothing for as long."""
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "it pulls")
        await broker.peer.down()
        await stands_still(m, logs, "broker_unreachable")
        await broker.peer.listen()
        await goes_on(m, logs, "broker_unreachable")
    assert set(broker.pulled_offsets(queue)) == {0}


async def test_a_queue_that_cannot_be_taken_over_is_shown(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """It has no offset, and so would not be shown at all."""
    broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, Reply(ResponseCode.NO_PERMISSION, "not for you"))
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await stands_still(m, logs, "no_permission")
        assert state(m) == "stuck"
        broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, broker.query)
        await seen.has(b"0")
        await goes_on(m, logs, "no_permission")
