"""A circuit breaker: its calls, and the messages of failed calls."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.consumer.consumer_options import CircuitOptions
from rmqd.handler_api.batch import Batch, DeadLetter
from tests.clock import ManualClock
from tests.consumer.handling.test_circuit_breaker import (
    IDS,
    MODES,
    OPEN_FOR,
    WINDOW,
    Database,
    change,
    circuit,
    events,
    fill,
)
from tests.consumer.pool import TIMEOUT_SECONDS, Gate, StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually


async def test_changed_limits_apply_to_calls_that_have_already_failed(pool: StartPool) -> None:
    clock, database = ManualClock(), Database(away=True)
    with capture_logs() as logs:
        async with pool(database, clock=clock, concurrency=1, circuit=circuit(10)) as running:
            fill(running, {}, 5)
            await clock.until(lambda: database.failed == 5, "all have failed")
            await clock.advance(1)
            assert events(logs) == []
            change(running, circuit(3))
            await clock.until(lambda: events(logs) == ["circuit.opened"], "the circuit opens", most=1)


@pytest.mark.parametrize("mode", MODES[1:], ids=IDS[1:])
async def test_in_place_attempts_do_not_count_while_the_handler_may_be_at_fault(
    pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any]
) -> None:
    """One message fails more often than its group allows before the circuit opens, and is handled after all."""
    clock, database = ManualClock(), Database(away=True)
    options = {"concurrency": 2, "circuit": circuit(5), "max_reconsume_times": 2, **mode}
    with capture_logs() as logs:
        async with pool(database, clock=clock, **options) as running:
            (queue,) = fill(running, mode, 1)
            await clock.until(lambda: "circuit.opened" in events(logs), "the circuit opens")
            assert database.attempts == {0: [0, 1, 2, 3, 4]}
            database.away = False
            await clock.until(done(queue), "it is handled")
    assert database.attempts[0][-1] == 0  # the failed attempts do not count
    assert handled(queue) == {"acked": 1, "retried": 5}
    assert not broker.sent


async def test_a_failed_message_is_sent_back_once_a_later_call_succeeds(
    pool: StartPool, broker: ScriptedBroker
) -> None:
    """Until then the cause is unknown. The success of a call that was already in flight proves nothing."""
    clock, gate, fails = ManualClock(), Gate(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        match batch[0].queue_offset:
            case 0:
                await gate(batch)
            case 1:
                fails.set()
                raise ConnectionError("away")

    async with pool(handle, clock=clock, concurrency=2, circuit=circuit()) as running:
        queue = running.queue(2)
        await fails.wait()
        await clock.advance(1)
        gate.open.set()
        await eventually(lambda: handled(queue) == {"acked": 1}, "the first one is handled")
        await clock.advance(2)
        assert not broker.sent_back
        assert queue.commit_offset() == 1
        running.give(queue, 1)
        await clock.until(lambda: len(broker.sent_back) == 1, "it is sent back", most=1.0)
        await eventually(done(queue), "nothing is left")
    assert handled(queue) == {"acked": 2, "retried": 1}


async def test_a_probe_with_a_dead_letter_is_followed_by_another(pool: StartPool, broker: ScriptedBroker) -> None:
    clock, database = ManualClock(), Database(away=True)
    late = asyncio.Event()

    async def handle(batch: Batch) -> None:
        if late.is_set() and database.away:
            database.away = False
            raise DeadLetter("bad")
        await database(batch)

    with capture_logs() as logs:
        async with pool(handle, clock=clock, concurrency=4, circuit=circuit(3)) as running:
            queue = running.queue(30)
            await eventually(lambda: "circuit.opened" in events(logs), "the circuit opens")
            late.set()
            await clock.advance(OPEN_FOR)
            await clock.until(done(queue), "all is handled")
    assert events(logs) == ["circuit.opened", "circuit.half_open", "circuit.closed"]
    assert handled(queue) == {"acked": 29, "dead_lettered": 1}


async def test_one_bad_message_of_a_batch_is_not_a_failed_call(pool: StartPool, broker: ScriptedBroker) -> None:
    """The handler has acknowledged the others."""
    bad = ValueError("bad")

    async def handle(batch: Batch) -> None:
        for message in list(batch)[1:]:
            batch.ack(message)
        raise bad

    with capture_logs() as logs:
        async with pool(handle, concurrency=1, consume_message_batch_max_size=5, circuit=circuit(2)) as running:
            queue = running.queue(30)
            await eventually(done(queue), "all is settled")
    assert events(logs) == []
    assert handled(queue) == {"acked": 24, "retried": 6}


async def test_after_many_successes_the_share_of_failures_opens_the_circuit(
    pool: StartPool, broker: ScriptedBroker
) -> None:
    """More calls succeeded than messages are cached: the share rises as the window moves on."""
    clock, database = ManualClock(), Database()
    with capture_logs() as logs:
        async with pool(database, clock=clock, circuit=circuit(0, 0.5)) as running:
            queue = running.queue(200)
            await eventually(done(queue), "all is handled")
            await clock.advance(WINDOW - 10)
            database.away = True
            running.give(queue, 50)
            await clock.until(lambda: events(logs) == ["circuit.opened"], "the circuit opens", most=12.0)
    assert not broker.sent_back


@pytest.mark.parametrize("mode", MODES, ids=IDS)
@pytest.mark.parametrize("messages", [1, 2])
async def test_an_outage_of_many_probes_dead_letters_no_message(
    pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any], messages: int
) -> None:
    """With few messages, each is a probe more often than it may be tried."""
    clock, database = ManualClock(), Database(away=True)
    with capture_logs() as logs:
        async with pool(
            database, clock=clock, concurrency=2, circuit=circuit(1), max_reconsume_times=1, **mode
        ) as running:
            (queue,) = fill(running, mode, messages)
            await clock.until(lambda: events(logs).count("circuit.probe_failed") >= 5, "five probes fail")
            database.away = False
            await clock.until(done(queue), "all is handled")
    assert handled(queue)["acked"] == messages
    assert not broker.sent_back
    assert not broker.sent


@pytest.mark.parametrize("mode", MODES, ids=IDS)
async def test_a_message_that_always_fails_does_not_keep_the_circuit_open(
    pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any]
) -> None:
    """Probes rotate over messages, and its later failures do not count against a handler that handles others."""
    clock, database = ManualClock(), Database()
    database.bad = {(0, 0)}
    options = {"concurrency": 1, "circuit": circuit(1), "max_reconsume_times": 1, **mode}
    with capture_logs() as logs:
        async with pool(database, clock=clock, **options) as running:
            queue, other = fill(running, mode, 1, queues=2)
            await clock.advance(OPEN_FOR + 1)
            for _ in range(4):
                (running.give_keys(other, ["x"]) if mode.get("order_by") else running.give(other, 1))
                await clock.advance(2)
            await clock.until(done(queue), "it is dead-lettered or sent back")
    assert events(logs) == ["circuit.opened", "circuit.half_open", "circuit.closed"]
    assert handled(queue)["dead_lettered" if mode else "retried"] >= 1


async def test_retries_of_failed_messages_do_not_open_the_circuit_again(pool: StartPool) -> None:
    """When the circuit closes, many keys begin with a message that failed before."""
    clock, calls = ManualClock(), Counter[int]()

    async def handle(batch: Batch) -> None:
        calls[batch[0].queue_offset] += 1
        await clock.sleep(0.1)
        if batch[0].queue_offset < 8 and calls[batch[0].queue_offset] <= 2:
            raise ValueError("not yet")

    with capture_logs() as logs:
        async with pool(handle, clock=clock, concurrency=8, circuit=circuit(5), order_by="keys") as running:
            queue = running.keyed([f"k{number}" for number in range(110)])
            await clock.until(done(queue), "all is handled")
    assert events(logs) == ["circuit.opened", "circuit.half_open", "circuit.closed"]


@pytest.mark.parametrize("mode", MODES[1:], ids=IDS[1:])
async def test_hanging_probes_cost_their_message_no_attempt(
    pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any]
) -> None:
    """A probe fails at its deadline, though its batch waits for the result of the call."""
    clock, calls = ManualClock(), list[tuple[int, threading.Event]]()

    def block(batch: Batch) -> None:
        let_go = threading.Event()
        if len(calls) == 4:
            return
        calls.append((batch[0].reconsume_times, let_go))
        let_go.wait(20)
        raise ConnectionError

    options = {"concurrency": 4, "circuit": circuit(1), "max_reconsume_times": 2, **mode}
    with capture_logs() as logs:
        async with pool(block, is_async=False, clock=clock, **options) as running:
            (queue,) = fill(running, mode, 1)
            for number in range(4):  # the first one opens the circuit
                await clock.until(lambda least=number: len(calls) > least, "a call hangs", most=OPEN_FOR + 5)  # type: ignore[misc]
                await clock.advance(TIMEOUT_SECONDS + 1)
                assert events(logs).count("circuit.probe_failed") == number
                calls[-1][1].set()
            await clock.until(done(queue), "it is handled")
    assert [attempts for attempts, _ in calls] == [0, 0, 0, 0]
    assert handled(queue) == {"acked": 1, "retried": 4}


async def test_a_pause_and_an_open_circuit_do_not_end_each_other(pool: StartPool) -> None:
    clock, database = ManualClock(), Database(away=True)
    with capture_logs() as logs:
        async with pool(database, clock=clock, concurrency=2, circuit=circuit(2)) as running:
            queue = running.queue(20)
            await eventually(lambda: events(logs) == ["circuit.opened"], "the circuit opens")
            running.service.pause()
            running.service.resume()
            await clock.advance(1)
            calls = database.calls.total()
            running.service.pause()
            database.away = False
            await clock.advance(2 * OPEN_FOR)
            assert database.calls.total() == calls
            running.service.resume()
            await clock.until(done(queue), "all is handled")
    assert handled(queue) == {"acked": 20}


@pytest.mark.parametrize(("seconds", "most"), [(1.0, 2.0), (60.0, OPEN_FOR + 1)])
async def test_a_changed_open_time_can_only_shorten_the_current_wait(
    pool: StartPool, seconds: float, most: float
) -> None:
    clock, database = ManualClock(), Database(away=True)
    with capture_logs() as logs:
        async with pool(database, clock=clock, concurrency=1, circuit=circuit(1)) as running:
            fill(running, {}, 2)
            await clock.until(lambda: events(logs) == ["circuit.opened"], "the circuit opens")
            change(running, CircuitOptions(1, 0.0, WINDOW, seconds))
            await clock.until(lambda: "circuit.probe_failed" in events(logs), "a probe is made", most=most)
