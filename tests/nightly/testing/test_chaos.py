"""`run_handler(..., chaos=True)`: handlers that chaos catches, and handlers that pass.

The core of these tests is in test_chaos_finds.py.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid

import pytest

from rmqd import Batch, DeadLetter
from rmqd.testing import NotRepeatableError
from tests.nightly.testing.test_chaos_finds import Keeps, Run, run, steps

__all__ = ["run"]


def test_depending_on_the_order_between_queues_fails_but_within_a_queue_passes(run: Run) -> None:
    class First:
        def __init__(self) -> None:
            self.first: str | None = None

        def handle(self, batch: Batch) -> None:
            self.first = self.first or batch[0].keys

    class LastOfEach:
        def __init__(self) -> None:
            self.last: dict[int, str | None] = {}

        def handle(self, batch: Batch) -> None:
            self.last[batch.message_queue.queue_id] = batch[0].keys

    with pytest.raises(NotRepeatableError, match="Between queues there is no order") as caught:
        run(First)
    assert len(steps(caught)) == 2
    run(LastOfEach)


def test_a_handler_that_refuses_known_messages_is_caught(run: Run) -> None:
    class Refuses(Keeps):
        async def handle(self, batch: Batch) -> None:
            if batch[0].keys in self.rows:
                raise DeadLetter("known")
            self.rows[batch[0].keys] = batch[0].body

    with pytest.raises(NotRepeatableError, match=r"order-\d is dead-lettered, expected handled"):
        run(Refuses)


def test_failures_that_are_the_same_each_time_pass(run: Run) -> None:
    class FailsAtFirst(Keeps):
        async def handle(self, batch: Batch) -> None:
            if batch[0].keys == "order-1":
                raise DeadLetter("no")
            if batch[0].keys == "order-2" and batch[0].reconsume_times < 2:
                raise ConnectionError
            await super().handle(batch)

    result = run(FailsAtFirst, max_reconsume_times=3)
    assert len(result.dead_letters) == 1


def test_times_and_random_ids_are_not_compared(run: Run) -> None:
    class Stamps(Keeps):
        async def handle(self, batch: Batch) -> None:
            await super().handle(batch)
            self.last = time.monotonic_ns(), uuid.uuid4(), batch[0].topic

    run(Stamps)


def test_rows_under_random_keys_are_compared_without_the_keys(run: Run) -> None:
    class Inserts:
        def __init__(self) -> None:
            self.rows: dict[str, tuple[str | None, int]] = {}

        def handle(self, batch: Batch) -> None:
            for message in batch:
                self.rows[str(uuid.uuid4())] = message.keys, time.monotonic_ns()

    class InsertsOnce(Inserts):
        def handle(self, batch: Batch) -> None:
            if batch[0].keys not in (keys for keys, _ in self.rows.values()):
                super().handle(batch)

    run(InsertsOnce)
    with pytest.raises(NotRepeatableError, match="is unexpected"):
        run(Inserts, group="others")


@pytest.mark.slow
def test_a_handler_that_never_returns_after_a_cancellation_is_caught(run: Run) -> None:
    class HoldsItsLock(Keeps):
        def __init__(self) -> None:
            super().__init__()
            self.lock = asyncio.Lock()

        async def handle(self, batch: Batch) -> None:
            await self.lock.acquire()
            await super().handle(batch)
            self.lock.release()

    with pytest.raises(NotRepeatableError, match="never done: the call does not return"):
        run(HoldsItsLock)


def test_iterators_that_a_handler_keeps_are_not_consumed(run: Run) -> None:
    """One of them has no end."""

    class Numbers(Keeps):
        def __init__(self) -> None:
            super().__init__()
            self.numbers, self.names = itertools.count(), (f"name {number}" for number in range(1000))

        async def handle(self, batch: Batch) -> None:
            next(self.numbers), next(self.names)
            await super().handle(batch)

    run(Numbers)


def test_attributes_in_private_slots_are_compared(run: Run) -> None:
    class Counts:
        __slots__ = ("__count",)

        def __init__(self) -> None:
            self.__count = 0

        def handle(self, batch: Batch) -> None:
            self.__count += len(batch)

    with pytest.raises(NotRepeatableError, match=r"leaves {'self': {'_Counts__count': 1}}"):
        run(Counts)
