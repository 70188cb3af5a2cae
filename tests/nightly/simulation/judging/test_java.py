"""Known behaviour of Java members, and the reports that it explains."""

from __future__ import annotations

from rmqd.wire.message_queue import MessageQueue
from tests.simulation.judging.java import JavaQueues
from tests.simulation.ledger import Call, Stored
from tests.simulation.loop import START_SECONDS, SimulatedLoop
from tests.simulation.names import TOPIC
from tests.simulation.timeline import Timeline


def test_java_explains_an_overlap_only_if_it_dropped_the_queue_meanwhile() -> None:
    """Seed 9750853: Java dropped a queue at a reset, so it no longer renewed the lock, and another member got it."""
    loop = SimulatedLoop()
    timeline = Timeline(loop)
    loop.close()
    queues = JavaQueues(timeline, [])
    before = Call("m2", "k", Stored("a", 3, 72), is_retry=False, attempt=0, began=34.0)
    after = Call("m3", "k", Stored("a", 3, 72), is_retry=False, attempt=0, began=36.0)
    assert not queues.explains_overlap(before, after)

    loop.now = START_SECONDS + 35.0
    queues.note_forced("m2", MessageQueue(TOPIC, "a", 3))
    assert queues.explains_overlap(before, after)
    for other in (
        Call("m1", "k", Stored("a", 3, 72), is_retry=False, attempt=0, began=34.0),
        Call("m2", "k", Stored("a", 2, 72), is_retry=False, attempt=0, began=34.0),
        Call("m2", "k", Stored("a", 3, 73), is_retry=False, attempt=0, began=35.5),
    ):
        assert not queues.explains_overlap(other, after)
    too_early = Call("m3", "k", Stored("a", 3, 72), is_retry=False, attempt=0, began=34.5)
    assert not queues.explains_overlap(before, too_early)
