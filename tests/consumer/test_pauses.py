"""Pauses of single queues: their scopes, and queues that are paused while messages arrive or owners change."""

from __future__ import annotations

import pytest

from rmqd.consumer.pauses import WHOLE_GROUP, Pauses, PauseScope
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

QUEUE = MessageQueue("t", "b", 3)


def test_a_scope_includes_queues_that_match_all_its_fields() -> None:
    for scope, named in [
        (WHOLE_GROUP, True),
        (PauseScope(topic="t"), True),
        (PauseScope(broker="b", queue=3), True),
        (PauseScope("t", "b", 3), True),
        (PauseScope(topic="u"), False),
        (PauseScope("t", "b", 4), False),
        (PauseScope("t", "c", 3), False),
        (PauseScope(queue=0), False),
    ]:
        assert scope.includes(QUEUE) == named
        assert Pauses([scope]).is_paused(QUEUE) == named


def test_a_resume_ends_pauses_within_its_scope_and_no_wider_ones() -> None:
    pauses = Pauses([WHOLE_GROUP, PauseScope("t"), PauseScope("t", "b", 3), PauseScope("u")])
    pauses.resume(PauseScope("t"))
    assert pauses.scopes == (WHOLE_GROUP, PauseScope("u"))
    assert pauses.is_paused(QUEUE)
    pauses.resume(WHOLE_GROUP)
    assert not pauses.scopes
    assert not pauses.is_paused(QUEUE)


def state(m: Member, number: int) -> str:
    queue = m.queue(number)
    return "" if queue is None else queue.state


def test_the_scopes_are_sorted() -> None:
    """A broker precedes its queues."""
    scopes = [PauseScope("t", broker, queue) for broker in "abcdef" for queue in (None, 0, 1)]
    assert Pauses(reversed(scopes)).scopes == tuple(scopes)


@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
async def test_a_paused_queue_stops_and_other_queues_continue(
    broker: ScriptedBroker, seen: Seen, mode: str, flowing: ManualClock
) -> None:
    """Cached messages wait, and also messages of a pull that the broker holds."""
    held, free = broker.create_topic(TOPIC, 2)
    handle = Blocked()

    async def keep(batch: Batch) -> None:
        if batch[0].body == b"first":
            await handle(batch)
        await seen(batch)

    await broker.store(held, b"first", b"second")
    options = {"concurrency": 1, "consume_mode": mode, "persist_consumer_offset_interval_seconds": 0.05}
    async with member(broker.peer.address, keep, clock=flowing, **options) as m:  # type: ignore[arg-type]
        await eventually(lambda: broker.pulled_offsets(held) == [0, 2], "the next pull waits at the broker")
        await eventually(lambda: (q := m.queue(0)) and q.handling == 1, "the first is being handled")
        m.consumer.pause(PauseScope(TOPIC, queue=0))
        handle.release.set()
        await broker.store(held, b"third")
        await broker.store(free, b"other")
        await seen.has(b"first", b"other")
        await broker.committed(GROUP, held, 1)
        await broker.store(held, b"fourth")
        await flowing.sleep(5)
        assert broker.pulled_offsets(held) == [0, 2]
        assert (state(m, 0), state(m, 1)) == ("paused", "waiting")
        assert not m.consumer.context.paused
        snapshot = m.queue(0)
        assert snapshot is not None
        assert snapshot.cached == 2
        assert m.consumer.snapshot().pauses == (PauseScope(TOPIC, queue=0),)
        m.consumer.resume(PauseScope(TOPIC))
        await seen.has(b"first", b"other", b"second", b"third", b"fourth")
        await broker.committed(GROUP, held, 4)


async def test_a_pause_still_applies_when_the_queue_is_acquired_again(
    broker: ScriptedBroker, seen: Seen, flowing: ManualClock
) -> None:
    """The pause applies to this process only; another member would consume the queue."""
    [queue] = broker.create_topic(TOPIC)
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "the queue is pulled")
        m.consumer.pause(PauseScope(TOPIC))
        broker.members[GROUP].insert(0, "0.0.0.0@first")
        m.consumer.on_consumer_ids_changed()
        await eventually(lambda: not m.owned(), "the queue is released")
        broker.members[GROUP].remove("0.0.0.0@first")
        m.consumer.on_consumer_ids_changed()
        await eventually(lambda: state(m, 0) == "paused", "the queue is acquired again, and paused")
        await broker.store(queue, b"0")
        await flowing.sleep(5)
        assert not seen.bodies
        m.consumer.resume()
        await seen.has(b"0")
