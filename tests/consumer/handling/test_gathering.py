"""Full batches, and smaller ones after the longest wait."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.ready_queues import BatchingQueues, create_ready_queues
from rmqd.handler_api.batch import Batch
from rmqd.testing import RocketMQ
from tests.clock import ManualClock
from tests.consumer.groups import group_options
from tests.consumer.pool import Pool

WAIT_SECONDS = 10.0


class Waiting(Pool):
    """Queues that wait for batches of four, without workers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.queues = BatchingQueues(4, WAIT_SECONDS, self.clock)
        super().__init__(cast("Any", self.queues), cast("Any", None), is_by_key=False)

    def shown(self, queue: ProcessQueue) -> tuple[bool, bool]:
        """Whether workers may take a batch, and whether the queue waits for a full batch."""
        return queue in self.queues.queues, queue.is_batching

    def take(self, queue: ProcessQueue) -> tuple[int, bool]:
        """A worker's batch: its size, and whether the worker stops at this queue."""
        halted: list[ProcessQueue] = []
        make = self.queues.halting_make(queue, Batch, halted.append)
        return len(make(queue.take(4), queue.message_queue)), halted == [queue]


def test_the_oldest_waiting_message_decides_how_long_a_queue_waits() -> None:
    """A response may be taken in parts."""
    waiting = Waiting()
    queue = waiting.queue(1)
    for messages in (2, 2):  # after 4 and 8 seconds
        waiting.clock.turn(4)
        assert waiting.shown(queue) == (False, True)
        waiting.give(queue, messages)
    assert waiting.shown(queue) == (True, True)
    assert waiting.take(queue) == (4, True)
    waiting.clock.turn(9.9)
    waiting.give(queue, 1)
    assert waiting.shown(queue) == (False, True)
    waiting.clock.turn(0.1)
    assert waiting.shown(queue) == (True, False)
    assert waiting.take(queue) == (2, True)


async def test_the_wait_begins_at_arrival_also_for_leftovers_and_in_a_pause() -> None:
    waiting = Waiting()
    queue = waiting.queue(9)
    assert [waiting.take(queue), waiting.take(queue)] == [(4, False), (4, True)]
    assert waiting.shown(queue) == (False, True)
    waiting.clock.turn(WAIT_SECONDS)
    assert (waiting.shown(queue), waiting.take(queue)) == ((True, False), (1, True))
    queue.pause()
    waiting.give(queue, 2)
    waiting.clock.turn(WAIT_SECONDS)
    queue.resume()
    waiting.queues.submit(queue)
    await asyncio.sleep(0)
    assert waiting.shown(queue) == (True, False)


def test_arrivals_are_forgotten_with_their_messages_and_queues() -> None:
    """A dropped queue with a running timer is forgotten when the timer ends."""
    waiting = Waiting()
    taken, armed = waiting.queue(0), waiting.queue(1, 1)
    for _ in range(9):
        waiting.give(taken, 4)
        waiting.take(taken)
        waiting.queues.submit(armed)
    waiting.give(armed, 1)
    waiting.queues.submit(armed)
    assert [len(arrivals) for arrivals in waiting.queues._arrivals.values()] == [1, 2]
    for queue in (taken, armed):
        queue.drop("rebalance")
    other = waiting.queue(1, 2)
    assert taken not in waiting.queues._arrivals
    waiting.clock.turn(WAIT_SECONDS)
    assert list(waiting.queues._arrivals) == [other]


@pytest.mark.parametrize(("size", "wait", "waits"), [(1, 9.0, False), (2, 0.0, False), (1, 0.0, False), (2, 9.0, True)])
def test_queues_wait_only_for_batches_of_several_messages_and_if_the_group_has_a_wait(
    size: int, wait: float, *, waits: bool
) -> None:
    options = group_options(consume_message_batch_max_size=size, consume_message_batch_max_wait_seconds=wait)
    queues, batching = create_ready_queues(options, ManualClock())
    assert (isinstance(queues, BatchingQueues), batching) == (waits, queues if waits else None)


POP = {"consume_mode": "pop", "pop_threshold_for_queue": 3, "pop_batch_nums": 2}
PULL = {"pull_threshold_for_queue": 3, "pull_batch_size": 2}


@pytest.mark.parametrize("keys", [POP, PULL], ids=["pop", "pull"])
def test_a_full_cache_hands_out_a_batch_that_it_cannot_fill(keys: dict[str, Any]) -> None:
    sizes: list[int] = []
    keys = {**keys, "consume_message_batch_max_size": 100, "consume_message_batch_max_wait": "25s", "timeout": 20}
    with RocketMQ() as rocketmq:
        rocketmq.create_topic("orders")
        for _ in range(12):
            rocketmq.send("orders", "order")
        rocketmq.run_handler(lambda batch: sizes.append(len(batch)), "orders", "g", until=lambda: sizes[1:], **keys)
    assert sum(sizes[:2]) < 12
