"""Batches of a group by key: one at a time for each key, with failures, hanging calls and releases.

An orderly queue has one key, so some tests cover both modes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter, defaultdict
from typing import Any

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.services import Ownership
from rmqd.handler_api.batch import NO_LOCK_LEASE, Batch, DeadLetter, Decision, Lease, Outcome, Retry, Suspend
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.pool import TIMEOUT_SECONDS, StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

GRACE_SECONDS = 5.5  # a little longer than a cancelled handler may take to end
BY_KEY: dict[str, Any] = {"order_by": "keys", "suspend_current_queue_time_seconds": 0.02}
ORDERLY: dict[str, Any] = {"consume_mode": "orderly", "suspend_current_queue_time_seconds": 0.02}


class Noted:
    """A handler that records messages by key, and how many are handled at once. Tests can hold keys or fail them."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.attempts: dict[str, list[int]] = defaultdict(list)
        self.now: Counter[str] = Counter()
        self.most_of_a_key = self.most = 0
        self.held: dict[str, asyncio.Event] = {}
        self.failures: Counter[str] = Counter()
        self.error: Exception = RuntimeError("no")

    async def __call__(self, batch: Batch) -> None:
        keys = [message.keys or "" for message in batch]
        self.now.update(keys)
        self.most = max(self.most, self.now.total())
        self.most_of_a_key = max([self.most_of_a_key, *(self.now[key] for key in keys if key)])
        try:
            for key, message in zip(keys, batch, strict=True):
                self.seen[key].append(message.queue_offset)
                self.attempts[key].append(message.reconsume_times)
                if key in self.held:
                    await self.held[key].wait()
                else:
                    await asyncio.sleep(0)
                if self.failures[key]:
                    self.failures[key] -= 1
                    raise self.error
        finally:
            self.now.subtract(keys)


@pytest.mark.parametrize("size", [1, 7])
async def test_each_key_keeps_its_order_while_other_keys_are_handled(pool: StartPool, size: int) -> None:
    draw, handle = random.Random(7), Noted()
    async with pool(handle, concurrency=8, consume_message_batch_max_size=size, **BY_KEY) as running:
        queue = running.keyed(draw.choice(["", "a", "b", "c", "d"]) for _ in range(200))
        running.give_keys(queue, (draw.choice("abc") for _ in range(50)))
        await eventually(done(queue), "all is handled")
    assert queue.commit_offset() == 250
    assert sum(map(len, handle.seen.values())) == 250
    assert all(offsets == sorted(offsets) for key, offsets in handle.seen.items() if key)
    assert handle.most_of_a_key == 1
    assert handle.most > 1


async def test_a_slow_key_holds_up_only_its_own_messages(pool: StartPool) -> None:
    """The commit offset still reaches its first message."""
    handle = Noted()
    handle.held["slow"] = asyncio.Event()
    async with pool(handle, concurrency=4, **BY_KEY) as running:
        queue = running.keyed(["a", "slow", "slow", "a", "b", "slow", "", "b"])
        await eventually(lambda: handle.seen["a"] == [0, 3] and handle.seen["b"] == [4, 7], "others are handled")
        assert (handle.seen["slow"], handle.seen[""]) == ([1], [6])
        assert queue.commit_offset() == 1
        handle.held["slow"].set()
        await eventually(done(queue), "all is handled")
    assert handle.seen["slow"] == [1, 2, 5]
    assert queue.commit_offset() == 8


async def test_a_failed_message_is_retried_before_the_next_one_of_its_key(
    pool: StartPool, broker: ScriptedBroker
) -> None:
    """Nothing is sent back, reconsume times count each attempt, and other keys continue."""
    handle = Noted()
    handle.failures["a"] = 3
    async with pool(handle, **BY_KEY) as running:
        queue = running.keyed(["a", "b", "a", "b"])
        await eventually(done(queue), "all is handled")
    assert (handle.seen["a"], handle.attempts["a"]) == ([0, 0, 0, 0, 2], [0, 1, 2, 3, 0])
    assert handle.seen["b"] == [1, 3]
    assert handled(queue) == {"acked": 4, "retried": 3}
    assert not broker.sent_back
    assert not broker.sent


@pytest.mark.parametrize(
    ("limit", "error", "cause"),
    [(2, RuntimeError("no"), "limit"), (-1, DeadLetter("bad"), "handler"), (-1, Retry(delay_level=-1), "level")],
)
async def test_a_key_continues_after_a_dead_letter(
    pool: StartPool, broker: ScriptedBroker, limit: int, error: Exception, cause: str
) -> None:
    """The attempts are used up, or the handler asks for a dead letter."""
    handle = Noted()
    handle.failures["a"], handle.error = 3 if limit > 0 else 1, error
    async with pool(handle, max_reconsume_times=limit, **BY_KEY) as running:
        queue = running.keyed(["a", "a"])
        await eventually(done(queue), "all is handled")
    assert handle.seen["a"] == ([0, 0, 0, 1] if limit > 0 else [0, 1])
    assert handled(queue)["dead_lettered"] == 1
    assert [sent.header.topic for sent in broker.sent] == ["%DLQ%g1"]
    assert queue.stats.snapshot().dead_letters[cause] == 1


async def test_a_release_handles_all_messages_below_one_that_was_handed_out(pool: StartPool) -> None:
    """So the next owner, which starts at the commit offset, handles none twice. Later messages are discarded."""
    handle = Noted()
    handle.held["slow"] = asyncio.Event()
    handle.held["last"] = asyncio.Event()
    async with pool(handle, concurrency=2, **BY_KEY) as running:
        queue = running.keyed(["slow", "slow", "a", "slow", "last", "last", "slow", "b"])
        await eventually(lambda: bool(handle.seen["last"]), "the slots are taken")
        queue.start_release()
        running.service.submit(queue)
        handle.held["slow"].set()
        await eventually(lambda: handle.seen["slow"] == [0, 1, 3], "the messages below are handled")
        assert queue.is_busy
        handle.held["last"].set()
        await asyncio.wait_for(queue.wait_idle(), 5)
    assert (handle.seen["last"], handle.seen["b"]) == ([4], [])
    assert (queue.commit_offset(), queue.finished_above_commit_offset(), queue.cached_count) == (5, 0, 0)


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_suspended_message_gets_one_more_attempt_in_a_release(pool: StartPool, failures: int) -> None:
    """Otherwise the next owner would handle all finished messages above it again."""
    handle = Noted()
    handle.failures["a"] = failures
    async with pool(handle, concurrency=4, order_by="keys", suspend_current_queue_time_seconds=0.1) as running:
        queue = running.keyed(["a", "b", "c", "b"])
        await eventually(
            lambda: queue.retrying == 1 and handle.seen["b"] == [1, 3], "one is suspended, the others are handled"
        )
        queue.start_release()
        running.service.submit(queue)
        assert queue.is_busy
        await asyncio.wait_for(queue.wait_idle(), 5)
    assert handle.seen["a"] == [0, 0]
    assert (queue.commit_offset(), queue.finished_above_commit_offset()) == ((4, 0) if failures == 1 else (0, 3))


@pytest.mark.parametrize("fails_before", [True, False])
async def test_a_release_grants_no_attempt_without_finished_messages_above(pool: StartPool, fails_before: bool) -> None:
    """It fails before or after the release starts. The messages behind it are never handed out."""
    handle = Noted()
    handle.failures["a"] = handle.failures["b"] = 1
    for key in "ab":
        handle.held[key] = asyncio.Event()
    async with pool(handle, concurrency=4, order_by="keys", suspend_current_queue_time_seconds=30) as running:
        queue = running.keyed(["c", "a", "b", "a", "b", "a"])
        await eventually(lambda: handle.seen["c"] == [0] and handle.now.total() == 2, "two are in flight")
        if fails_before:
            handle.held["a"].set()
            await eventually(lambda: queue.retrying == 1, "the first one is suspended")
        handle.held["b"].set()
        await eventually(lambda: queue.retrying == 1 + fails_before, "the second one is suspended")
        queue.start_release()
        running.service.submit(queue)
        handle.held["a"].set()
        await asyncio.wait_for(queue.wait_idle(), 5)
    assert (handle.seen["a"], handle.seen["b"]) == ([1], [2])
    assert (queue.commit_offset(), queue.finished_above_commit_offset()) == (1, 0)


@pytest.mark.parametrize("scope", ["group", "queue"])
async def test_a_paused_queue_hands_out_nothing_in_its_release(pool: StartPool, scope: str) -> None:
    """Its finished messages above the commit offset are counted, because the next owner handles them again."""
    handle = Noted()
    handle.held["slow"] = asyncio.Event()
    async with pool(handle, concurrency=4, **BY_KEY) as running:
        queue = running.keyed(["slow", "slow", "a", "b"])
        await eventually(lambda: handle.seen["b"] == [3] and handle.now.total() == 1, "the other keys are handled")
        if scope == "group":
            running.service.pause()
        else:
            queue.pause()
        queue.start_release()
        running.service.submit(queue)
        handle.held["slow"].set()
        await asyncio.wait_for(queue.wait_idle(), 5)
    assert handle.seen["slow"] == [0]
    assert (queue.commit_offset(), queue.finished_above_commit_offset()) == (1, 2)


async def test_a_group_that_pauses_during_a_release_hands_out_nothing_more_of_the_queue(pool: StartPool) -> None:
    handle = Noted()
    handle.held |= {"slow": asyncio.Event(), "c": asyncio.Event()}
    async with pool(handle, concurrency=2, **BY_KEY) as running:
        queue = running.keyed(["slow", "slow", "a", "c", "d"])
        await eventually(lambda: handle.seen["c"], "both slots are taken")
        queue.start_release()
        running.service.pause()
        for key in handle.held.values():
            key.set()
        await asyncio.wait_for(queue.wait_idle(), 5)
    assert handle.seen == {"slow": [0], "a": [2], "c": [3]}


@pytest.mark.parametrize("order", [BY_KEY, ORDERLY], ids=["order_by", "orderly"])
async def test_the_groups_delay_level_applies_by_key_but_not_to_orderly_queues(
    pool: StartPool, broker: ScriptedBroker, order: dict[str, Any]
) -> None:
    """Java's orderly consumers ignore delayLevelWhenNextConsume; -1 means a dead letter after the first failure."""
    handle = Noted()
    handle.failures["a"] = 1
    async with pool(handle, delay_level_when_next_consume=-1, **order) as running:
        queue = running.ordered(["a"])
        await eventually(done(queue), "it is settled")
    assert handled(queue) == ({"dead_lettered": 1} if order is BY_KEY else {"acked": 1, "retried": 1})


@pytest.mark.parametrize("order", [BY_KEY, ORDERLY], ids=["order_by", "orderly"])
async def test_a_new_cache_of_a_queue_waits_for_the_batches_of_the_replaced_one(
    pool: StartPool, order: dict[str, Any]
) -> None:
    """For example after a reset. A key never has two messages in flight."""
    handle, first = Noted(), [1] if order is BY_KEY else []
    handle.held["a"] = asyncio.Event()
    async with pool(handle, concurrency=4, **order) as running:
        former = running.ordered(["a", "b"])
        left = 2 - len(first)
        await eventually(lambda: handle.seen["a"] == [0] and former.cached_count == left, "one message is in flight")
        former.drop("offset_moved")
        queue = running.ordered(["a", "b"])
        other = running.ordered(["c"], 1)
        await eventually(done(other), "another queue continues")
        assert (handle.seen["a"], handle.seen["b"]) == ([0], first)
        handle.held["a"].set()
        await eventually(done(queue), "the new cache is handled")
    assert (handle.seen["a"], handle.seen["b"]) == ([0, 0], [*first, 1])
    assert former.stats.snapshot().duplicates == {"offset_moved": 1}


class Locks(Ownership):
    """Queue locks that a test can lose and win back."""

    def __init__(self) -> None:
        self.lost: set[int] = set()

    def lease(self, queue: MessageQueue) -> Lease | None:
        return None if queue.queue_id in self.lost else NO_LOCK_LEASE


async def test_an_orderly_group_hands_out_nothing_of_a_queue_without_its_lock(pool: StartPool) -> None:
    """The rest is handed out when the lock is won back. Other queues continue meanwhile."""
    handle, locks = Noted(), Locks()
    handle.held["slow"] = asyncio.Event()
    async with pool(handle, consume_mode="orderly", concurrency=2, leases=locks, **BY_KEY) as running:
        queue = running.keyed(["slow", "a"], 0)
        await eventually(lambda: handle.seen["a"] == [1], "the group holds the lock")
        await eventually(lambda: running.service.ready_queues.idle_workers, "the turn at the queue has ended")
        locks.lost.add(0)
        running.give_keys(queue, ["a", "b"])
        other = running.keyed(["c", "d"], 1)
        await eventually(done(other), "another queue continues")
        handle.held["slow"].set()
        await eventually(lambda: queue.in_flight == 0, "the running call ends")
        assert (handle.seen["a"], handle.seen["b"]) == ([1], [])
        locks.lost.clear()
        running.service.submit(queue)
        await eventually(done(queue), "all is handled")
    assert (handle.seen["a"], handle.seen["b"]) == ([1, 2], [3])


async def test_queues_take_turns_in_the_only_slot(pool: StartPool) -> None:
    """No queue is served to its end while others wait."""
    order: list[int] = []
    begin = asyncio.Event()

    async def handle(batch: Batch) -> None:
        order.append(batch.message_queue.queue_id)
        await begin.wait()

    async with pool(handle, concurrency=1, **BY_KEY) as running:
        queues = [running.keyed([""] * 2000, number) for number in range(3)]
        await eventually(lambda: bool(order), "the handler has a message")
        begin.set()
        await eventually(lambda: all(done(queue)() for queue in queues), "all is handled")
    assert all(order.index(number) < 4000 for number in range(3))


async def test_an_expired_call_keeps_its_key_until_it_ends(pool: StartPool) -> None:
    """A coroutine may ignore its cancellation. Its slot and other keys continue."""
    clock, let_go = ManualClock(), threading.Event()
    seen: list[tuple[int, int]] = []

    async def ignore_cancellation(batch: Batch) -> None:
        seen.append((batch[0].queue_offset, batch[0].reconsume_times))
        is_held = batch[0].keys == "hung" and len(seen) <= 2
        while is_held and not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    async with pool(ignore_cancellation, clock=clock, concurrency=2, **BY_KEY) as running:
        queue = running.keyed(["hung", "hung", "a"])
        await eventually(lambda: len(seen) == 2, "the other key is handled")
        await clock.advance(TIMEOUT_SECONDS + 1)
        await asyncio.sleep(0.05)
        await clock.advance(GRACE_SECONDS)
        await eventually(lambda: running.service.abandoned == 1, "the call is abandoned")
        running.give_keys(queue, ["hung", "b", "c"])
        await eventually(lambda: {(4, 0), (5, 0)} <= set(seen), "other keys continue")
        assert queue.is_busy
        assert queue.commit_offset() == 0
        let_go.set()
        await clock.until(done(queue), "all is handled")
        assert running.service.abandoned == 0
    assert [one for one in seen if one[0] in (0, 1, 3)] == [(0, 0), (0, 1), (1, 0), (3, 0)]
    assert handled(queue) == {"acked": 6, "expired": 1}


async def test_each_message_is_suspended_as_long_as_its_own_error_asks(pool: StartPool) -> None:
    """A typed handler raises for one message of a batch at a time."""
    clock, times = ManualClock(), list[float]()

    async def handle(batch: Batch) -> None:
        times.append(clock.monotonic())
        if len(times) == 1:
            batch.decide(0, Decision(Outcome.RETRY, error=Suspend(20.0)))

    async with pool(handle, clock=clock, **BY_KEY) as running:
        queue = running.keyed(["a"])
        await eventually(lambda: queue.retrying == 1, "it is suspended")
        await clock.until(done(queue), "it is handled")
    assert times[1] - times[0] >= 20.0


@pytest.mark.parametrize("order", [BY_KEY, ORDERLY], ids=["order_by", "orderly"])
async def test_a_dead_letter_that_no_broker_accepts_holds_its_key(
    pool: StartPool, broker: ScriptedBroker, order: dict[str, Any]
) -> None:
    """The message is handed out again after each suspension."""
    handle = Noted()
    handle.failures["a"], handle.error = 99, DeadLetter("never")
    refused = Reply(ResponseCode.SYSTEM_ERROR, "no")
    broker.peer.on(RequestCode.SEND_MESSAGE_V2, refused)
    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, refused)
    async with pool(handle, **order) as running:
        queue = running.ordered(["a", "a", "b"])
        await eventually(lambda: len(handle.seen["a"]) >= 3, "it is tried again")
        assert queue.commit_offset() == 0
        handle.failures["a"] = 1
        broker.peer.on(RequestCode.SEND_MESSAGE_V2, broker.send)
        await eventually(done(queue), "a broker accepted it")
    assert set(handle.seen["a"][:-1]) == {0}
    assert (handle.seen["a"][-1], handle.seen["b"]) == (1, [2])
    assert broker.sent[0].properties["RMQD_REASON"] == "never"
