"""What Java members are known to do, and what that explains."""

from __future__ import annotations

from rmqd.wire.message_queue import MessageQueue
from tests.simulation.judging.java import JavaQueues
from tests.simulation.ledger import Call, Stored
from tests.simulation.loop import START_SECONDS, SimulatedLoop
from tests.simulation.names import TOPIC
from tests.simulation.timeline import Timeline


def test_an_overlap_is_javas_only_if_it_unlocked_the_queue_under_its_handler() -> None:
    """Seed 9750853: a reset had Java drop a queue, so its lock was old when another member got the queue."""
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
