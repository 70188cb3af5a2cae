"""Deduplication by leases: rare failures of a store, and rare ends of a call or group."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from rmqd.consumer.consumer_options import DeduplicationOptions
from rmqd.consumer.handling.handler_threads import HandlerNotAwaitedError
from rmqd.consumer.handling.held_claims import LEASE_SECONDS, HeldClaims
from rmqd.handler_api.batch import Batch
from rmqd.handler_api.leases.lease_opening import create_claim_store
from rmqd.handler_api.leases.lease_store import ClaimStore, ClaimStoreError, ClaimTerms
from rmqd.handler_api.once.once_group import once_for_group
from rmqd.wire.message_queue import Identity
from rmqd.wire.messages.message import once_in_group
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.handling.test_deduplication import (
    ABANDONED,
    BY_KEY,
    CONFIRMED,
    HELD,
    IN_ORDER,
    MODE_NAMES,
    MODES,
    OURS,
    Hanging,
    Noting,
    Place,
    deduplicated,
    place,
    queue_of,
)
from tests.consumer.pool import StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.servers.redis import RedisServer
from tests.waiting import eventually

__all__ = ["place"]


@pytest.mark.process
@pytest.mark.parametrize("name", ["order\0-17", " ".join(map(str, range(1500)))], ids=["NUL", "6 kB"])
async def test_a_key_that_postgresql_cannot_write_literally_is_deduplicated(
    pool: StartPool, database: str, name: str
) -> None:
    handle, clock = Noting(), ManualClock()
    where = DeduplicationOptions("keys", "postgresql", database, 3600.0)
    async with pool(handle, clock=clock, deduplication=where) as running, clock.flowing():
        queue = queue_of(running, ["a", name, name, "b"], {})
        await eventually(done(queue), "all are acknowledged")
    assert sorted(map(str, handle.keys)) == sorted(["a", name, "b"])


async def test_two_messages_with_one_key_are_never_in_flight_at_once(pool: StartPool, place: Place) -> None:
    """Here in queues of one process. The others are acknowledged when the first is confirmed."""
    let_go = asyncio.Event()

    async def wait(_: Batch) -> None:
        await let_go.wait()

    handle, clock = Noting(wait), ManualClock()
    async with pool(handle, clock=clock, deduplication=place.options) as running, clock.flowing():
        queues = [queue_of(running, ["a"], {}, number) for number in range(4)]
        await eventually(lambda: sum(queue.retrying for queue in queues) == 3, "three messages wait")
        await clock.advance(5)
        let_go.set()
        for queue in queues:
            await eventually(done(queue), "it is acknowledged")
    assert handle.keys == ["a"]
    assert sum(map(deduplicated, queues)) == 3


@pytest.mark.process
async def test_an_acknowledgement_waits_for_a_store_that_failed_during_the_call(
    pool: StartPool, broker: ScriptedBroker, redis_server: RedisServer
) -> None:
    """For longer than `consume_timeout`: the handler has done its work, and is not called again."""
    clock = ManualClock()

    async def kill_it(_: Batch) -> None:
        redis_server.kill()

    handle = Noting(kill_it)
    where = DeduplicationOptions("keys", "redis", redis_server.url, 3600.0)
    options = {"deduplication": where, "consume_timeout_seconds": 3.0}
    try:
        async with pool(handle, clock=clock, **options) as running, clock.flowing():
            queue = queue_of(running, ["a"], {})
            await eventually(lambda: running.service.problem, "the failure is reported")
            await clock.advance(10)
            assert queue.cached_count == 1
            await asyncio.to_thread(redis_server.start)
            await eventually(done(queue), "it is confirmed")
    finally:
        redis_server.restart()
    assert handle.keys == ["a"]
    assert handled(queue) == {"acked": 1}
    assert not broker.sent_back
    other = create_claim_store("redis", redis_server.url, ClaimTerms(GROUP, "other", 60.0, 60.0))
    assert await other.claim([(TOPIC, "a")], "other:1") == [CONFIRMED]
    await other.close()


@pytest.mark.parametrize(("mode", "is_async"), ABANDONED)
async def test_messages_that_a_hanging_call_acknowledged_are_confirmed(
    pool: StartPool, broker: ScriptedBroker, place: Place, mode: dict[str, Any], is_async: bool
) -> None:
    """At the deadline, or at the end of a call that its group waits for. Other leases are released at the end."""
    clock, hanging = ManualClock(), Hanging(lambda batch: batch.ack(batch[0]))
    options: dict[str, Any] = {"consume_timeout_seconds": 3.0, "consume_message_batch_max_size": 2, "concurrency": 2}
    options |= {"deduplication": place.options, **mode}
    async with pool(hanging.function(is_async), is_async=is_async, clock=clock, **options) as running, hanging:
        queue = queue_of(running, ["a", "b"], mode)
        await eventually(lambda: hanging.calls, "it is called")
        await clock.advance(9)
        await eventually(lambda: running.service.abandoned, "the call is abandoned")
        if not mode:
            await eventually(done(queue), "it is settled")
            assert await place.standing("a") is CONFIRMED
            assert await place.standing("b") is HELD
        hanging.let_go.set()
        async with clock.flowing():
            await eventually(lambda: not running.service.abandoned, "the call has ended")
            await eventually(done(queue), "all is settled")

            async def is_given_up() -> bool:
                return await place.standing("b") is not HELD

            await eventually(is_given_up, "the lease of the other message is released")
    assert await place.standing("a") is CONFIRMED
    assert handled(queue) == ({"acked": 2, "expired": 1} if mode else {"acked": 1, "expired": 1})
    assert hanging.calls == ([0, 0] if mode else [0])


async def test_a_refused_release_does_not_prevent_renewals(pool: StartPool, place: Place) -> None:
    """The member retries the release only until the lease has expired."""

    async def handle(batch: Batch) -> None:
        if batch[0].keys == "long":
            await asyncio.Event().wait()
        place.refuse_to_delete("stuck")
        raise RuntimeError("no")

    async def renewed() -> None:
        ends_at = place.ends_at("long")
        await eventually(lambda: place.ends_at("long") > ends_at, "the other lease is renewed")

    clock = ManualClock()
    options = {"deduplication": place.options, "concurrency": 2, "consume_timeout_seconds": 900.0}
    with capture_logs() as logs:
        async with pool(handle, clock=clock, **options) as running, clock.flowing():
            queue_of(running, ["long", "stuck"], {})
            problem = await eventually(lambda: running.service.problem, "a release is refused")
            assert "stuck stays" in problem.evidence
            await renewed()
            await clock.advance(LEASE_SECONDS)
            await renewed()  # earlier requests have their responses now
            await renewed()
            logs.clear()
            await renewed()
            await renewed()
            assert not logs, "the store is not asked for the release again"
            assert running.service.problem is None


async def test_a_recovered_store_ends_the_problem_even_without_messages(pool: StartPool, place: Place) -> None:
    place.path.parent.mkdir()
    place.break_it()
    clock = ManualClock()
    async with pool(Noting(), clock=clock, deduplication=place.options) as running, clock.flowing():
        await eventually(lambda: running.service.problem, "the failure is reported")
        place.mend_it()
        await eventually(lambda: running.service.problem is None, "the problem ends")


async def test_a_handler_that_is_not_awaited_confirms_nothing(pool: StartPool, place: Place) -> None:
    async def handle(_: Batch) -> object:
        return asyncio.sleep(0)

    async def run() -> None:
        async with pool(handle, deduplication=place.options) as running:
            queue_of(running, ["a"], {})
            await running.task

    with pytest.raises(HandlerNotAwaitedError):
        await run()
    assert await place.standing("a") is OURS


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
async def test_handled_messages_of_a_lost_queue_are_confirmed(
    pool: StartPool, place: Place, mode: dict[str, Any]
) -> None:
    """Neither these messages nor the skipped duplicates count as acknowledged here."""
    other = place.member()
    await other.confirm([(TOPIC, "a")], "other:1")

    async def lose_it(_: Batch) -> None:
        queue.drop("lock_lost")

    handle = Noting(lose_it)
    async with pool(handle, deduplication=place.options, consume_message_batch_max_size=2, **mode) as running:
        queue = queue_of(running, ["a", "b"], mode)
        await eventually(lambda: queue.dropped, "the queue is lost")

        async def is_confirmed() -> bool:
            return await place.standing("b") is CONFIRMED

        await eventually(is_confirmed, "it is confirmed")
    assert handle.keys == ["b"]
    assert (handled(queue), deduplicated(queue)) == ({}, 0)


async def test_skipped_batches_do_not_count_as_calls(pool: StartPool, place: Place) -> None:
    """Their duration would make a handler look fast, or slow if the store is slow."""
    other = place.member()
    await other.confirm([(TOPIC, "a")], "other:1")
    async with pool(Noting(), deduplication=place.options) as running:
        queue = queue_of(running, ["a", "b", "a"], {})
        await eventually(done(queue), "all is acknowledged")
        assert queue.stats.snapshot().handler_duration.count == 1


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
async def test_a_stopping_group_completes_its_confirmations(
    pool: StartPool, place: Place, mode: dict[str, Any]
) -> None:
    """The confirmation waited for a store that has recovered by then."""

    async def refuse(_: Batch) -> None:
        place.refuse_to_confirm()

    handle, clock = Noting(refuse), ManualClock()
    async with pool(handle, deduplication=place.options, clock=clock, **mode) as running:
        queue_of(running, ["a"], mode)
        await eventually(lambda: running.service.problem, "its confirmation waits for the store")
        place.confirm_again()
    assert handle.keys == ["a"]
    assert await place.standing("a") is CONFIRMED


async def test_messages_that_a_stopping_group_cannot_confirm_keep_their_leases(
    pool: StartPool, place: Place, flowing: ManualClock
) -> None:
    """The leases are not released: the handler has done its work."""

    async def refuse(_: Batch) -> None:
        place.refuse_to_confirm()

    with capture_logs() as logs:
        async with pool(Noting(refuse), clock=flowing, deduplication=place.options) as running:
            queue_of(running, ["a"], {})
            await eventually(lambda: running.service.problem, "its confirmation waits for the store")
    assert await place.standing("a") is HELD
    assert [one["messages"] for one in logs if one["event"] == "claims.left"] == [1]


@pytest.mark.parametrize("mode", [IN_ORDER, BY_KEY], ids=["orderly", "by key"])
async def test_the_last_decision_of_a_call_that_got_a_part_of_its_batch_counts(
    pool: StartPool, place: Place, mode: dict[str, Any]
) -> None:
    """The call acknowledges before its deadline, and asks for a retry afterwards."""
    await place.member().confirm([(TOPIC, "z")], "other:1")
    let_go, clock = threading.Event(), ManualClock()
    calls: list[list[str | None]] = []

    def handle(batch: Batch) -> None:
        calls.append([message.keys for message in batch])
        if len(calls) > 1:
            return
        for message in batch:
            batch.ack(message)
        let_go.wait()
        for message in batch:
            batch.retry(message)

    options: dict[str, Any] = {"consume_timeout_seconds": 3.0, "consume_message_batch_max_size": 2, "concurrency": 2}
    options |= {"deduplication": place.options, **mode}
    async with pool(handle, is_async=False, clock=clock, **options) as running:
        queue = queue_of(running, ["a", "z"], mode)
        await eventually(lambda: calls, "it is called")
        await clock.advance(9)
        let_go.set()
        async with clock.flowing():
            await eventually(done(queue), "all is settled")
    assert calls == [["a"], ["a"]]


@pytest.mark.parametrize("mode", [{}, BY_KEY], ids=["concurrently", "by key"])
async def test_a_failed_message_does_not_wait_for_confirmations_of_its_batch(
    pool: StartPool, place: Place, mode: dict[str, Any]
) -> None:
    async def fail_one(batch: Batch) -> None:
        if len(batch) == 2:
            place.refuse_to_confirm()
            batch.dead_letter(batch[1], "no")

    clock = ManualClock()
    options = {"deduplication": place.options, "consume_message_batch_max_size": 2, **mode}
    async with pool(Noting(fail_one), clock=clock, **options) as running, clock.flowing():
        queue = queue_of(running, ["a", "b"], mode)
        await eventually(lambda: queue.cached_count == 1, "the dead letter is finished")
        assert handled(queue) == {"dead_lettered": 1}
        place.confirm_again()
        await eventually(done(queue), "the other one is confirmed")
    assert handled(queue) == {"acked": 1, "dead_lettered": 1}
    assert [await place.standing(key) for key in "ab"] == [CONFIRMED, OURS]


async def test_in_order_a_dead_letter_is_finished_before_later_confirmations(pool: StartPool, place: Place) -> None:
    """Otherwise it could be sent again while the confirmation takes long."""

    async def refuse(batch: Batch) -> None:
        place.refuse_to_confirm()
        batch.dead_letter(batch[0], "no")

    clock = ManualClock()
    options = {"deduplication": place.options, "consume_message_batch_max_size": 2, **IN_ORDER}
    async with pool(Noting(refuse), clock=clock, **options) as running, clock.flowing():
        queue = queue_of(running, ["a", "b"], IN_ORDER)
        await eventually(lambda: queue.commit_offset() == 1, "the dead letter is finished")
        assert handled(queue) == {"dead_lettered": 1}
        place.confirm_again()
        await eventually(done(queue), "the other one is confirmed")
    assert handled(queue) == {"acked": 1, "dead_lettered": 1}


async def test_records_belong_to_one_cluster_and_namespace(pool: StartPool, place: Place) -> None:
    """Keys, group and topic are the same. Records of 0.1.0, which name neither, count for each."""
    former = place.member()
    await former.claim([(TOPIC, "b")], "other:1")
    await former.confirm([(TOPIC, "b")], "other:1")
    keys = []
    for cluster, namespace in (("c1", ""), ("c2", ""), ("c1", "n1")):
        once_in_group.set(once_for_group(GROUP, partial(Identity, cluster, namespace, GROUP)))
        handle = Noting()
        async with pool(handle, deduplication=place.options) as running:
            queue = running.queue(0)
            running.give_keys(queue, ["a", "b", "a"])
            await eventually(done(queue), "all are acknowledged")
        keys.append(handle.keys)
    assert keys == [["a"], ["a"], ["a"]]


async def test_a_handler_that_cancels_its_own_task_acknowledges_anyway(
    pool: StartPool, broker: ScriptedBroker, place: Place
) -> None:
    async def handle(_: Batch) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async with pool(handle, deduplication=place.options) as running:
        queue = queue_of(running, ["a"], {})
        await eventually(done(queue), "it is settled")
    assert handled(queue) == {"acked": 1}
    assert await place.standing("a") is CONFIRMED


async def test_an_abandoned_thread_keeps_its_lease_until_it_ends(
    pool: StartPool, broker: ScriptedBroker, place: Place
) -> None:
    """Its call may still have its effect."""
    let_go, clock = threading.Event(), ManualClock()

    def handle(_: Batch) -> None:
        let_go.wait()

    options = {"deduplication": place.options, "consume_timeout_seconds": 3.0, "concurrency": 2}
    async with pool(handle, is_async=False, clock=clock, **options) as running, clock.flowing():
        queue = queue_of(running, ["a"], {})
        await eventually(done(queue), "it is sent back")
        assert await place.standing("a") is HELD
        running.give_keys(queue, ["a"])
        await eventually(lambda: queue.retrying, "its copy waits")
        let_go.set()
        await eventually(done(queue), "the copy is handled")
    assert handled(queue) == {"expired": 1, "acked": 1}
    assert await place.standing("a") is CONFIRMED


@pytest.mark.parametrize(("mode", "is_async"), ABANDONED)
async def test_a_call_that_never_ends_keeps_its_lease_until_it_expires(
    pool: StartPool, broker: ScriptedBroker, place: Place, mode: dict[str, Any], is_async: bool
) -> None:
    """Messages of other queues wait, too, in every mode. Then the next message with that key is handled."""
    clock, hanging = ManualClock(), Hanging()
    options = {"deduplication": place.options, "consume_timeout_seconds": 3.0, "concurrency": 2, **mode}
    function = hanging.function(is_async)
    async with pool(function, is_async=is_async, clock=clock, **options) as running, hanging:
        queue_of(running, ["a"], mode, 0)
        await eventually(lambda: hanging.calls, "it is called")
        other = queue_of(running, ["a"], mode, 1)
        await clock.advance(20)
        await eventually(lambda: running.service.abandoned, "the call is abandoned")
        await clock.advance(5)
        assert hanging.calls == [0]
        async with clock.flowing():
            await eventually(done(other), "it is handled after the lease has expired")
    assert hanging.calls == [0, 1]


async def test_in_order_messages_after_a_retry_are_not_confirmed_before_it(pool: StartPool, place: Place) -> None:
    """The queue repeats them after the retry, so the handler must get them again."""
    batches: list[list[str | None]] = []

    async def handle(batch: Batch) -> None:
        batches.append([message.keys for message in batch])
        if len(batches) == 1:
            batch.retry(batch[1])

    clock = ManualClock()
    options = {"deduplication": place.options, "consume_message_batch_max_size": 3, **IN_ORDER}
    async with pool(handle, clock=clock, **options) as running, clock.flowing():
        queue = queue_of(running, ["a", "b", "c"], IN_ORDER)
        await eventually(done(queue), "all are done")
    assert batches == [["a", "b", "c"], ["b", "c"]]
    assert deduplicated(queue) == 0


async def test_in_order_messages_after_a_dead_letter_are_confirmed(
    pool: StartPool, broker: ScriptedBroker, place: Place
) -> None:
    """Whatever caused the dead letter: here the attempts are used up."""
    batches: list[list[str | None]] = []

    async def handle(batch: Batch) -> None:
        batches.append([message.keys for message in batch])
        batch.retry(batch[0])

    options = {"consume_message_batch_max_size": 3, "max_reconsume_times": 0, **IN_ORDER}
    async with pool(handle, deduplication=place.options, **options) as running:
        queue = queue_of(running, ["a", "b", "c"], IN_ORDER)
        await eventually(done(queue), "all are done")
    assert batches == [["a", "b", "c"]]
    assert handled(queue) == {"acked": 2, "dead_lettered": 1}
    assert [await place.standing(key) for key in "abc"] == [OURS, CONFIRMED, CONFIRMED]


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
@pytest.mark.parametrize("what", ["group", "queue"])
async def test_a_pause_during_an_outage_of_the_store_prevents_new_calls(
    pool: StartPool, place: Place, mode: dict[str, Any], what: str
) -> None:
    handle, clock = Noting(), ManualClock()
    place.path.parent.mkdir()
    place.break_it()
    async with pool(handle, clock=clock, deduplication=place.options, **mode) as running, clock.flowing():
        queue = queue_of(running, ["a", "b"], mode)
        await eventually(lambda: running.service.problem, "it waits for the store")
        if what == "group":
            running.service.pause()
        else:
            queue.pause()
        place.mend_it()
        await eventually(lambda: queue.retrying or len(queue.paused) == 2, "the messages are put back")
        await clock.advance(10)
        assert not handle.keys
        if what == "group":
            running.service.resume()
        else:
            queue.resume()
            running.service.submit(queue)
        await eventually(done(queue), "all are handled")
    assert sorted(map(str, handle.keys)) == ["a", "b"]
    assert handled(queue) == {"acked": 2}


async def test_the_release_of_a_queue_does_not_wait_for_an_unavailable_store(pool: StartPool, place: Place) -> None:
    handle, clock = Noting(), ManualClock()
    place.path.parent.mkdir()
    place.break_it()
    async with pool(handle, clock=clock, deduplication=place.options) as running, clock.flowing():
        queue = queue_of(running, ["a", "b"], {})
        await eventually(lambda: running.service.problem, "it waits for the store")
        queue.start_release()
        await queue.wait_idle()
    assert not handle.keys
    assert queue.commit_offset() == 0
    assert not handled(queue)


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
async def test_a_stopping_group_confirms_messages_that_a_call_acknowledged(
    pool: StartPool, place: Place, mode: dict[str, Any]
) -> None:
    """The stop cancels the call, but its effect is there. In order, no message after an unfinished one is confirmed.

    With `order_by` a batch has no two messages with one key.
    """
    began = asyncio.Event()

    async def handle(batch: Batch) -> None:
        batch.ack(batch[0])
        batch.ack(batch[2])
        began.set()
        await asyncio.Event().wait()

    options = {"deduplication": place.options, "consume_message_batch_max_size": 3, **mode}
    async with pool(handle, **options) as running:
        queue_of(running, ["a", "b", "c"], mode)
        await began.wait()
    assert [await place.standing(key) for key in "abc"] == [CONFIRMED, OURS, OURS if mode is IN_ORDER else CONFIRMED]


async def test_in_order_a_dead_letter_is_sent_after_the_confirmations_before_it(pool: StartPool, place: Place) -> None:
    """The queue may be lost meanwhile. Then its next owner sends the dead letter."""

    async def refuse(batch: Batch) -> None:
        if not handle.keys[2:]:
            place.refuse_to_confirm()
        for message in batch:
            if message.keys == "b":
                batch.dead_letter(message, "no")

    handle = Noting(refuse)
    options = {"deduplication": place.options, "consume_message_batch_max_size": 2, **IN_ORDER}
    with capture_logs() as logs:
        async with pool(handle, **options) as running:
            queue = queue_of(running, ["a", "b"], IN_ORDER)
            await eventually(lambda: running.service.problem, "the confirmation waits for the store")
            queue.drop("rebalance")
            place.confirm_again()
        async with pool(handle, **options) as running:
            queue = queue_of(running, ["a", "b"], IN_ORDER)
            await eventually(done(queue), "its next owner has settled it")
    assert handle.keys == ["a", "b", "b"]
    assert [one["offset"] for one in logs if one["event"] == "message.dead_lettered"] == [1]


async def test_a_store_with_a_full_disk_stays_unavailable_while_it_refuses_leases() -> None:
    """It accepts renewals that write nothing, but they do not prove a recovery."""

    class Full:
        async def claim(self, *_: object) -> object:
            raise ClaimStoreError("database or disk is full")

        async def renew(self, held: object) -> None: ...

    clock = ManualClock()
    claims = HeldClaims(cast("ClaimStore", Full()), "one", clock)
    claim = claims.create_claim()
    claims.reserve(claim, 0, ("orders", "a"))
    tasks = [asyncio.create_task(claims.run()), asyncio.create_task(claims.claim_in_store(claim, lambda: False))]
    with capture_logs() as logs:
        await clock.advance(60)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [entry["event"] for entry in logs] == ["claims.store_away"]
