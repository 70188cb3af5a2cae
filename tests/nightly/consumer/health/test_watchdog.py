"""Queues of a scripted broker that stand still: what is told of them, and that they go on."""

from __future__ import annotations

from rmqd.consumer.health.watchdog import STALL_SECONDS, TICK_SECONDS
from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock
from tests.consumer.groups import TOPIC, Blocked
from tests.consumer.health.test_watchdog import Logs, events, goes_on, logs, stall, stands_still, state
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["logs"]


async def test_what_arrives_behind_a_slow_handler_is_no_progress(
    broker: ScriptedBroker, queue: MessageQueue, logs: Logs, flowing: ManualClock
) -> None:
    """Nothing is finished, though a message comes every second."""
    handle = Blocked()
    await broker.store(queue, b"0")
    async with member(broker.peer.address, handle, clock=flowing, concurrency=1) as m:
        for number in range(1, int(2 * STALL_SECONDS)):
            await broker.store(queue, b"%d" % number)
            await flowing.sleep(1)
        problem = stall(m)
        assert problem is not None
        assert problem.cause == "slow_handler"
        handle.release.set()
        await goes_on(m, logs, "slow_handler")


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


async def test_a_queue_of_which_nothing_is_cached_stands_still_too(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """As one that is paused before its first pull: the broker tells that messages wait."""
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen, clock=flowing) as m:
        m.consumer.pause()
        await stands_still(m, logs, "paused")
        snapshot = m.queue()
        assert snapshot is not None
        assert (snapshot.cached, snapshot.lag) == (0, 1)
        assert not seen.bodies


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


async def test_queues_that_stand_still_together_are_one_line(
    broker: ScriptedBroker, logs: Logs, flowing: ManualClock
) -> None:
    """And one line only, while the cause is the same."""
    queues = broker.create_topic(TOPIC, 3)
    handle = Blocked()
    for queue in queues:
        await broker.store(queue, b"0", b"1")
    async with member(broker.peer.address, handle, clock=flowing, concurrency=3) as m:
        await eventually(lambda: all(stall(m, number) for number in range(3)), "all are seen to stand still")
        await flowing.sleep(TICK_SECONDS * 3)
        handle.release.set()
    [entry] = events(logs, "queue.stalled")
    assert (entry["topic"], entry["queues"]) == (TOPIC, [0, 1, 2])
