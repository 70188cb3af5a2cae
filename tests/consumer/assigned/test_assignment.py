"""What pulled and popped assignments have in common: state, figures, stalls, and the end of a drain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.health.causes import Problem
from rmqd.consumer.services import RunningCall
from rmqd.consumer.stats.stats_snapshot import QueueSnapshot
from rmqd.errors import RemotingError
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import pop_retry_topic, retry_topic
from tests.consumer.blocks import block_of
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.pull.test_assigned_queue import Case, case

__all__ = ["case"]

AWAY = RemotingError("a:10911", "no answer")


class Popped(Assignment):
    """An assignment of all queues of a broker, with two caches once `acquired` is called."""

    is_popped = True

    def __init__(self, case: Case, topic: str = TOPIC) -> None:
        super().__init__(case.context, MessageQueue(topic, "a", -1))
        self.loop: Any = None
        self.caches = [
            ProcessQueue(MessageQueue(TOPIC, "a", number), 0, case.context.stats[TOPIC]) for number in (0, 1)
        ]

    def acquired(self) -> None:
        self.loop = SimpleNamespace(process_queues=self.caches, hold_reason=None, has_backlog=False, failure=None)

    async def run(self) -> None: ...

    def progress(self) -> object: ...

    def has_work(self) -> bool:
        return False

    def measure(self) -> None: ...

    def snapshot(self) -> QueueSnapshot:
        return self._figures()

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest message, while the lag is 3."""
        return self._lag_seconds(3)


@pytest.fixture
def popped(case: Case) -> Popped:
    case.locks.granted.set()
    return Popped(case)


def test_brokers_keep_the_offsets_of_popped_queues(popped: Popped) -> None:
    assert not popped.move_to(3)
    assert popped.commit_offset() is None
    assert not popped.is_idle(0.0)


def test_the_failure_of_the_loop_is_that_of_the_assignment(popped: Popped) -> None:
    assert popped.failure is None
    assert popped.explain_stall().cause == "held_lock", "it is not acquired"
    popped.acquired()
    assert popped.failure is None
    popped.loop.failure = AWAY
    assert popped.failure is AWAY
    assert popped.explain_stall().cause == "broker_unreachable"


def test_the_state_of_several_queues_is_that_of_the_busiest(
    case: Case, popped: Popped, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert popped.snapshot().state == "waiting"
    popped.acquired()
    assert popped.snapshot().state == "waiting"
    popped.caches[1].put(block_of([0]), 1)
    assert popped.snapshot().state == "handling"
    with monkeypatch.context() as patch:
        patch.setattr(case.context.service, "circuit", SimpleNamespace(state="open"))
        assert popped.snapshot().state == "paused"
    popped.caches[1].retrying = 1
    assert popped.snapshot().state == "retrying"


def test_waiting_and_postponed_messages_are_not_being_handled(case: Case, popped: Popped) -> None:
    popped.acquired()
    assert (popped.snapshot().handling, popped.lag_seconds) == (0, None)
    popped.caches[0].put(block_of(range(5), store_timestamp=1_700_000_001_000), 5)
    popped.caches[0].take(3)
    popped.caches[0].retrying = 1
    assert (popped.snapshot().cached, popped.snapshot().handling) == (5, 2)
    assert popped.lag_seconds == 0.0, "the broker's clock is ahead"
    popped.caches[1].put(block_of([0], store_timestamp=1_699_999_999_500), 1)
    assert popped.lag_seconds == case.clock.wall() - 1_699_999_999.5, "the oldest message of all queues counts"


def test_the_longest_call_of_the_assignment_explains_its_stall(
    case: Case, popped: Popped, monkeypatch: pytest.MonkeyPatch
) -> None:
    popped.acquired()
    popped.caches[1].put(block_of([0]), 1)
    batch, now = Batch(popped.caches[1].take(1), popped.message_queue), case.clock.now
    popped.caches[1].begin_turn()
    other = ProcessQueue(MessageQueue(TOPIC, "a", 9), 0, case.context.stats[TOPIC])
    ages = [(popped.caches[0], 3.0), (popped.caches[1], 20.0), (popped.caches[0], 8.0), (other, 47.0)]
    calls = [RunningCall(cache, batch, now - seconds) for cache, seconds in ages]
    monkeypatch.setattr(case.context.service, "calls", lambda: calls)
    assert "for 20 s" in popped.explain_stall().evidence


def test_a_pop_retry_topic_has_its_own_name(case: Case) -> None:
    """Its counters are those of the group's retry topic."""
    case.locks.granted.set()
    retries = pop_retry_topic(GROUP, TOPIC)
    case.context.stats[retries] = case.context.stats[retry_topic(GROUP)]
    assignment = Popped(case, retries)
    assert (assignment.snapshot().topic, assignment.snapshot().is_retry) == (retries, True)


def test_a_stall_that_does_not_stop_the_queue_keeps_its_state(popped: Popped) -> None:
    popped.stall = Problem("slow_handler", "it takes long", "see its log")
    assert popped.snapshot().state == "waiting"
    popped.stall = Problem("corrupt_message", "a message is corrupt", "skip it")
    assert popped.snapshot().state == "stuck"


async def test_a_forced_stop_ends_the_drain_of_a_queue(case: Case) -> None:
    async with case.running() as loop:
        await case.clock.until(lambda: loop.process_queue.next_offset == 9, "all is pulled")
        loop.process_queue.take(1)
        loop.process_queue.begin_turn()
        case.assigned.release(1000.0)
        await case.clock.advance(1.0)
        assert not loop.process_queue.dropped
        case.assigned.force_stop()
        await case.clock.until(lambda: loop.process_queue.dropped, "the drain is over", 5.0)
