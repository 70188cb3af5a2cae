"""`deduplicate`: duplicates, and messages that another member handles or has handled."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import DeduplicationOptions, Subscription
from rmqd.handler_api.batch import Batch
from rmqd.handler_api.leases.lease_opening import create_claim_store
from rmqd.handler_api.leases.lease_store import ClaimState, ClaimStore, ClaimTerms
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.pool import Pool, StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

OURS, HELD, CONFIRMED = ClaimState.OURS, ClaimState.HELD, ClaimState.CONFIRMED
IN_ORDER: dict[str, Any] = {"consume_mode": "orderly"}
BY_KEY: dict[str, Any] = {"order_by": "keys", "suspend_current_queue_time_seconds": 0.02}
MODES = [{}, IN_ORDER, BY_KEY]
MODE_NAMES = ["concurrently", "orderly", "by key"]
ABANDONED = [({}, True), ({}, False), (BY_KEY, True)]  # (mode, is_async) with abandoned expired calls


class Noting:
    """A handler that records the keys of its messages, then calls a function of the test."""

    def __init__(self, then: Callable[[Batch], Awaitable[object]] | None = None) -> None:
        self.keys: list[str | None] = []
        self._then = then

    async def __call__(self, batch: Batch) -> None:
        self.keys += [message.keys for message in batch]
        if self._then is not None:
            await self._then(batch)


class Place:
    """The file that the members of a group share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.options = DeduplicationOptions("keys", "sqlite", str(path), 3600.0)
        self._opened: list[ClaimStore] = []

    def member(self, owner: str = "other", lease_seconds: float = 60.0) -> ClaimStore:
        """Return the store as another member opens it."""
        self._opened.append(
            create_claim_store("sqlite", str(self.path), ClaimTerms(GROUP, owner, lease_seconds, 3600.0))
        )
        return self._opened[-1]

    async def standing(self, key: str) -> ClaimState:
        """Return the current state of a key in the store, without keeping a lease."""
        store = self.member("asking")
        [standing] = await store.claim([(TOPIC, key)], "asking:1")
        if standing is OURS:
            await store.release([((TOPIC, key), "asking:1")])
        return standing

    async def is_free(self, key: str) -> bool:
        """Whether no member has the key. Its lease is released some time after its message was settled."""
        return await self.standing(key) is OURS

    def break_it(self) -> None:
        """Let the store answer all requests with errors."""
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.rename(path.with_name(f"kept-{path.name}"))
        self.path.mkdir()

    def mend_it(self) -> None:
        """Undo `break_it`."""
        self.path.rmdir()
        for path in self.path.parent.glob("kept-*"):
            path.rename(path.with_name(path.name.removeprefix("kept-")))

    def refuse_to_delete(self, key: str) -> None:
        """Let the store refuse to delete this key before its time is over."""
        self._execute(f"""
            CREATE TRIGGER refuse BEFORE DELETE ON claims
            WHEN old.id = '{key}' AND old.ends_at > strftime('%s', 'now') + 0
            BEGIN SELECT RAISE(ABORT, '{key} stays'); END
        """)

    def refuse_to_confirm(self) -> None:
        """Let the store refuse each confirmation."""
        self._execute("""
            CREATE TRIGGER refuse BEFORE INSERT ON claims WHEN new.is_confirmed
            BEGIN SELECT RAISE(ABORT, 'not now'); END
        """)

    def confirm_again(self) -> None:
        """Undo `refuse_to_confirm`."""
        self._execute("DROP TRIGGER refuse")

    def ends_at(self, key: str) -> float:
        """Return when the lease or the record of a key ends."""
        [(ends_at,)] = self._execute("SELECT ends_at FROM claims WHERE id = ?", key)
        return float(ends_at)

    def _execute(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path / "claims" / "g1.sqlite3")
    yield place
    await place.close()


def queue_of(running: Pool, keys: list[str], mode: dict[str, Any], number: int = 0) -> ProcessQueue:
    if "order_by" in mode:
        return running.keyed(keys, number)
    queue = running.queue(0, number)
    running.give_keys(queue, keys)
    return queue


def deduplicated(queue: ProcessQueue) -> int:
    return queue.stats.snapshot().deduplicated


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
@pytest.mark.parametrize("size", [1, 4])
async def test_a_redelivered_message_is_acknowledged_and_not_handled(
    pool: StartPool, broker: ScriptedBroker, place: Place, mode: dict[str, Any], size: int
) -> None:
    """Also in one batch with the first copy. Messages without a key are handled each time."""
    handle, clock = Noting(), ManualClock()
    options = {"deduplication": place.options, "consume_message_batch_max_size": size, **mode}
    async with pool(handle, clock=clock, **options) as running, clock.flowing():
        queue = queue_of(running, ["a", "b", "a", "", "", "c"], mode)
        await eventually(done(queue), "all are acknowledged")
        running.give_keys(queue, ["b", "d"])
        await eventually(done(queue), "the new messages are acknowledged")
    assert sorted(str(key) for key in handle.keys) == ["None", "None", "a", "b", "c", "d"]
    assert (handled(queue), deduplicated(queue)) == ({"acked": 8}, 2)
    assert not broker.sent_back
    assert [await place.standing(key) for key in "abcd"] == [CONFIRMED] * 4


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_message_leased_by_another_member_waits_without_an_attempt(
    pool: StartPool, broker: ScriptedBroker, place: Place, mode: dict[str, Any], is_done: bool
) -> None:
    """It is acknowledged when the other member confirms it, and handled when the other member releases it."""
    other = place.member()
    await other.claim([(TOPIC, "b")], "other:1")
    handle, clock = Noting(), ManualClock()
    async with pool(handle, clock=clock, deduplication=place.options, **mode) as running, clock.flowing():
        queue = queue_of(running, ["a", "b", "c"], mode)
        allowed = ["a"] if mode == IN_ORDER else ["a", "c"]
        await eventually(lambda: sorted(map(str, handle.keys)) == allowed, "the others are handled")
        await clock.advance(20)
        assert sorted(map(str, handle.keys)) == allowed
        assert queue.commit_offset() == 1
        problem = await eventually(lambda: running.service.explain(queue), "the wait is reported")
        assert problem.cause == "claimed_elsewhere"
        if is_done:
            await other.confirm([(TOPIC, "b")], "other:1")
        else:
            await other.release([((TOPIC, "b"), "other:1")])
        await eventually(done(queue), "all messages are acknowledged")
    assert sorted(map(str, handle.keys)) == (["a", "c"] if is_done else ["a", "b", "c"])
    assert (handled(queue), deduplicated(queue)) == ({"acked": 3}, int(is_done))
    assert not broker.sent_back


async def test_a_message_of_a_dead_member_is_handled_when_its_lease_ends(pool: StartPool, place: Place) -> None:
    await place.member("dead", lease_seconds=0.05).claim([(TOPIC, "a")], "dead:1")
    handle, clock = Noting(), ManualClock()
    async with pool(handle, clock=clock, deduplication=place.options) as running, clock.flowing():
        queue = queue_of(running, ["a"], {})
        await eventually(done(queue), "it is handled")
    assert handle.keys == ["a"]
    assert await place.standing("a") is CONFIRMED


async def test_the_handler_gets_the_messages_of_a_batch_that_no_other_member_has(
    pool: StartPool, broker: ScriptedBroker, place: Place
) -> None:
    """Its decisions about them apply, and the next attempt can lease the failed ones."""
    other = place.member()
    await other.claim([(TOPIC, "b"), (TOPIC, "c")], "other:1")
    await other.confirm([(TOPIC, "c")], "other:1")
    batches: list[list[str | None]] = []

    async def handle(batch: Batch) -> None:
        batches.append([message.keys for message in batch])
        for message in batch:
            if message.keys == "d":
                batch.retry(message, 1)
            if message.keys == "e":
                batch.dead_letter(message, "no")

    clock = ManualClock()
    options = {"deduplication": place.options, "consume_message_batch_max_size": 5}
    async with pool(handle, clock=clock, **options) as running, clock.flowing():
        queue = queue_of(running, ["a", "b", "c", "d", "e"], {})
        await eventually(lambda: queue.cached_count == 1, "all but one are settled")
        await other.confirm([(TOPIC, "b")], "other:1")
        await eventually(done(queue), "the last one is settled too")
    assert batches == [["a", "d", "e"]]
    assert (handled(queue), deduplicated(queue)) == ({"acked": 3, "retried": 1, "dead_lettered": 1}, 2)
    assert len(broker.sent_back) == 1
    assert [await place.standing(key) for key in "abcde"] == [CONFIRMED, CONFIRMED, CONFIRMED, OURS, OURS]


@pytest.mark.parametrize(
    "mode",
    [IN_ORDER, {"consume_mode": "pop", "subscriptions": {TOPIC: Subscription("*", "TAG", ("room-1",))}}],
    ids=["orderly", "lite topics"],
)
async def test_in_order_no_message_overtakes_a_message_that_another_member_has(
    pool: StartPool, place: Place, mode: dict[str, Any]
) -> None:
    other, handle, clock = place.member(), Noting(), ManualClock()
    await other.claim([(TOPIC, "a")], "other:1")
    options = {"deduplication": place.options, "consume_message_batch_max_size": 3, **mode}
    async with pool(handle, clock=clock, **options) as running, clock.flowing():
        queue = queue_of(running, ["a", "b", "c"], {})
        await clock.sleep(10)
        assert handle.keys == []
        await other.release([((TOPIC, "a"), "other:1")])
        await eventually(done(queue), "all are handled")
    assert handle.keys == ["a", "b", "c"]


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
async def test_the_lease_of_a_failed_message_is_released_for_its_next_attempt(
    pool: StartPool, broker: ScriptedBroker, place: Place, mode: dict[str, Any]
) -> None:
    async def fail_first(_: Batch) -> None:
        if len(handle.keys) == 1:
            raise RuntimeError("no")

    handle, clock = Noting(fail_first), ManualClock()
    options = {"deduplication": place.options, "auto_concurrency": True, **mode}
    async with pool(handle, clock=clock, **options) as running, clock.flowing():
        queue = queue_of(running, ["a"], mode)
        await eventually(done(queue), "it is settled")
        if not mode:  # the message is sent back and redelivered
            await eventually(lambda: place.is_free("a"), "its lease is released")
            running.give_keys(queue, ["a"])
            await eventually(done(queue), "it is handled")
        assert cast("Any", running.service)._auto._busy_slots == 0
    assert handle.keys == ["a", "a"]
    assert len(broker.sent_back) == (0 if mode else 1)
    assert await place.standing("a") is CONFIRMED


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
@pytest.mark.parametrize("is_async", [True, False])
async def test_an_unavailable_store_costs_no_attempt_and_nothing_is_handled(
    pool: StartPool, broker: ScriptedBroker, place: Place, mode: dict[str, Any], is_async: bool
) -> None:
    """Even if the store is unavailable for longer than a call may take."""
    keys: list[str | None] = []

    async def handle(batch: Batch) -> None:
        keys.extend(message.keys for message in batch)

    def handle_in_thread(batch: Batch) -> None:
        keys.extend(message.keys for message in batch)

    place.path.parent.mkdir()
    place.break_it()
    clock = ManualClock()
    options = {"deduplication": place.options, "consume_timeout_seconds": 3.0, **mode}
    function = handle if is_async else handle_in_thread
    async with pool(function, is_async=is_async, clock=clock, **options) as running, clock.flowing():
        queue = queue_of(running, ["a", "b"], mode)
        await eventually(lambda: running.service.problem, "the problem is reported")
        problem = running.service.explain(queue)
        assert problem is not None
        assert problem.cause == "claim_store_away"
        assert "unable to open database file" in problem.evidence
        await clock.advance(60)
        assert not keys
        place.mend_it()
        await eventually(done(queue), "all is handled")
        assert running.service.problem is None
    assert sorted(map(str, keys)) == ["a", "b"]
    assert handled(queue) == {"acked": 2}
    assert not broker.sent_back


async def test_a_call_cancelled_at_its_deadline_confirms_nothing_and_releases_its_lease(
    pool: StartPool, broker: ScriptedBroker, place: Place
) -> None:
    async def handle(_: Batch) -> None:
        await asyncio.Event().wait()

    clock = ManualClock()
    options = {"deduplication": place.options, "consume_timeout_seconds": 3.0}
    async with pool(handle, clock=clock, **options) as running, clock.flowing():
        queue = queue_of(running, ["a"], {})
        await eventually(done(queue), "it is sent back")
        await eventually(lambda: place.is_free("a"), "its lease is released")
    assert handled(queue) == {"expired": 1}


class Hanging:
    """A handler whose first call ignores cancellation until the test ends it. Records the queues of its calls."""

    def __init__(self, first: Callable[[Batch], None] = lambda _: None) -> None:
        self.calls: list[int] = []
        self.let_go = threading.Event()
        self._first = first

    def handle(self, batch: Batch) -> None:
        self.calls.append(batch.message_queue.queue_id)
        if len(self.calls) == 1:
            self._first(batch)
            self.let_go.wait()

    async def handle_async(self, batch: Batch) -> None:
        self.calls.append(batch.message_queue.queue_id)
        if len(self.calls) > 1:
            return
        self._first(batch)
        while not self.let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.002)

    def function(self, is_async: bool) -> Callable[[Batch], object]:
        return self.handle_async if is_async else self.handle

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        self.let_go.set()  # otherwise the end of the group would wait for the call


async def test_the_end_of_a_group_releases_its_leases(pool: StartPool, place: Place) -> None:
    began = asyncio.Event()

    async def handle(_: Batch) -> None:
        began.set()
        await asyncio.Event().wait()

    async with pool(handle, deduplication=place.options) as running:
        queue_of(running, ["a"], {})
        await began.wait()
        assert await place.standing("a") is HELD
    assert await place.standing("a") is OURS


async def test_the_end_of_a_group_keeps_the_leases_of_running_calls(pool: StartPool, place: Place) -> None:
    """These leases expire later."""
    hanging = Hanging()
    try:
        async with pool(hanging.handle, is_async=False, deduplication=place.options) as running:
            queue_of(running, ["a"], {})
            await eventually(lambda: hanging.calls, "it is called")
        assert await place.standing("a") is HELD
    finally:
        hanging.let_go.set()
