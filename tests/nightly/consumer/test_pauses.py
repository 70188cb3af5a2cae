"""Pauses of single queues hold through a reset and a release."""

from __future__ import annotations

from rmqd.codes import ResponseCode
from rmqd.consumer.pauses import PauseScope
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.test_pauses import state
from tests.seen import Seen
from tests.waiting import eventually


async def test_a_paused_queue_that_is_reset_stays_paused(
    broker: ScriptedBroker, seen: Seen, flowing: ManualClock
) -> None:
    """It continues at the new offset when it is resumed."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"0", b"1", b"2")
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await seen.has(b"0", b"1", b"2")
        m.consumer.pause(PauseScope(TOPIC))
        broker.answer_pull(queue, broker.nothing(queue, ResponseCode.PULL_OFFSET_MOVED, 1, "OFFSET_RESET"))
        await broker.store(queue, b"3")  # ends the pull that waits at the broker
        await broker.committed(GROUP, queue, 1)
        await flowing.sleep(5)
        assert seen.bodies == [b"0", b"1", b"2"]
        assert state(m, 0) == "paused"
        m.consumer.resume(PauseScope(TOPIC))
        await seen.has(b"0", b"1", b"2", b"1", b"2", b"3")


async def test_a_paused_queue_is_released_without_its_messages(broker: ScriptedBroker, seen: Seen) -> None:
    """Its cached messages are not committed, so the next owner handles them."""
    [queue] = broker.create_topic(TOPIC)
    async with member(broker.peer.address, seen) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "the first pull waits")
        m.consumer.pause(PauseScope(TOPIC))
        await broker.store(queue, b"0", b"1")
        await eventually(lambda: (q := m.queue(0)) and q.cached == 2, "the pull came back")
        await m.stop()
        assert m.topic().duplicates.get("stopped", 0) == 0
    assert broker.offsets[GROUP, queue] == 0
    assert not seen.bodies
