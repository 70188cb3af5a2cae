"""How the workers of a group hand out full batches, and what does not fill one once it has waited."""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.handler_api.batch import Batch
from rmqd.testing import RocketMQ
from tests.clock import ManualClock
from tests.consumer.pool import StartPool, done
from tests.waiting import eventually

WAIT_SECONDS = 10.0


class Sizes:
    """A handler that notes how many messages each batch has."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def __call__(self, batch: Batch) -> None:
        self.sizes.append(len(batch))


@pytest.mark.parametrize("size", [2, 4])
async def test_a_batch_is_handed_over_when_it_is_full(pool: StartPool, size: int) -> None:
    clock, handle = ManualClock(), Sizes()
    async with pool(
        handle,
        clock=clock,
        consume_message_batch_max_size=size,
        consume_message_batch_max_wait_seconds=WAIT_SECONDS,
    ) as running:
        queue = running.queue(size - 1)
        full = running.queue(size, number=1)
        await eventually(done(full), "the full one is handled")
        await clock.advance(WAIT_SECONDS - 1)
        assert handle.sizes == [size]
        running.give(queue, 1)
        await eventually(done(queue), "the other one is full")
    assert handle.sizes == [size, size]


async def test_what_fills_no_batch_waits_for_so_long_only(pool: StartPool) -> None:
    clock, handle = ManualClock(), Sizes()
    async with pool(
        handle, clock=clock, consume_message_batch_max_size=4, consume_message_batch_max_wait_seconds=WAIT_SECONDS
    ) as running:
        queue = running.queue(3)
        await clock.advance(WAIT_SECONDS - 1)
        assert handle.sizes == []
        await clock.advance(2)
        await eventually(done(queue), "it has waited")
    assert handle.sizes == [3]


POP = {"consume_mode": "pop", "pop_threshold_for_queue": 3, "pop_batch_nums": 2}
PULL = {"pull_threshold_for_queue": 3, "pull_batch_size": 2}


@pytest.mark.parametrize("keys", [POP, PULL], ids=["pop", "pull"])
def test_a_full_cache_hands_over_the_batch_that_it_cannot_fill(keys: dict[str, Any]) -> None:
    sizes: list[int] = []
    keys = {**keys, "consume_message_batch_max_size": 100, "consume_message_batch_max_wait": "25s", "timeout": 20}
    with RocketMQ() as rocketmq:
        rocketmq.create_topic("orders")
        for _ in range(12):
            rocketmq.send("orders", "order")
        rocketmq.run_handler(lambda batch: sizes.append(len(batch)), "orders", "g", until=lambda: sizes[1:], **keys)
    assert sum(sizes[:2]) < 12
