"""Effects of a circuit breaker on calls, and on the messages of failed calls."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import CircuitOptions, FailureOptions
from rmqd.handler_api.batch import Batch, DeadLetter, InvalidPayloadError, Retry, Suspend
from tests.clock import ManualClock
from tests.consumer.pool import TIMEOUT_SECONDS, Pool, StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

OPEN_FOR = 15.0
WINDOW = 30.0
MODES: list[dict[str, Any]] = [{}, {"consume_mode": "orderly"}, {"order_by": "keys"}]
IDS = ["concurrently", "orderly", "order_by"]


def circuit(consecutive: int = 5, ratio: float = 0.0) -> CircuitOptions:
    return CircuitOptions(consecutive, ratio, WINDOW, OPEN_FOR)


class Database:
    """A handler whose database can be unavailable. Counts calls, and records the attempts of each message."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away
        self.calls: Counter[int] = Counter()
        self.attempts: dict[int, list[int]] = {}
        self.failed = 0
        self.bad: set[tuple[int, int]] = set()  # queues and offsets that always fail

    async def __call__(self, batch: Batch) -> None:
        for message in batch:
            self.calls[message.queue_offset] += 1
            self.attempts.setdefault(message.queue_offset, []).append(message.reconsume_times)
        await asyncio.sleep(0)
        if self.away or any((message.queue_id, message.queue_offset) in self.bad for message in batch):
            self.failed += 1
            raise ConnectionError("connection refused")


def fill(running: Pool, mode: dict[str, Any], messages: int, queues: int = 1) -> list[ProcessQueue]:
    if "order_by" in mode:
        return [running.keyed([f"k{i}" for i in range(messages)], number) for number in range(queues)]
    return [running.queue(messages, number) for number in range(queues)]


def events(logs: list[Any]) -> list[str]:
    return [entry["event"] for entry in logs if entry["event"].startswith("circuit.")]


@pytest.mark.parametrize("mode", MODES, ids=IDS)
async def test_an_outage_costs_no_attempt(pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any]) -> None:
    """Neither the calls that open the circuit nor probes count. One call probes for all queues."""
    clock, database = ManualClock(), Database(away=True)
    with capture_logs() as logs:
        async with pool(
            database, clock=clock, concurrency=8, circuit=circuit(), max_reconsume_times=6, **mode
        ) as running:
            queues = fill(running, mode, 50, queues=4)
            await clock.until(lambda: "circuit.opened" in events(logs), "the circuit opens")
            await clock.advance(1)
            opened_with = database.failed
            assert opened_with <= 5 + 8
            assert not broker.sent_back
            for probes in (1, 2, 3):
                await clock.advance(OPEN_FOR)
                await eventually(lambda probes=probes: database.failed == opened_with + probes, "one call probes")  # type: ignore[misc]
            database.away = False
            await clock.advance(OPEN_FOR)
            await clock.until(lambda: all(done(queue)() for queue in queues), "all is handled")
    assert events(logs) == [
        "circuit.opened",
        *["circuit.half_open", "circuit.probe_failed"] * 3,
        "circuit.half_open",
        "circuit.closed",
    ]
    assert not broker.sent_back
    probed = [attempts for attempts in database.attempts.values() if len(attempts) > 1]
    assert all(attempts[-1] == 0 for attempts in probed)
    assert not any("dead_lettered" in handled(queue) for queue in queues)
    assert all(queue.commit_offset() == 50 for queue in queues)


@pytest.mark.parametrize("mode", MODES, ids=IDS)
async def test_a_message_that_fails_alone_is_settled_as_without_a_circuit(
    pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any]
) -> None:
    """Other messages succeed, so the handler works. The attempts count, and the circuit stays closed."""
    clock, database = ManualClock(), Database()
    database.bad = {(0, 0)}
    options = {"concurrency": 2, "circuit": circuit(3), "max_reconsume_times": 1, **mode}
    with capture_logs() as logs:
        async with pool(database, clock=clock, **options) as running:
            (queue, other) = fill(running, mode, 1, queues=2)
            for _ in range(4 if mode else 2):  # successes show that the handler works
                await clock.advance(0.6)
                (running.give_keys(other, ["x"]) if "order_by" in mode else running.give(other, 1))
            await clock.until(done(queue), "it is dead-lettered or sent back")
    assert events(logs) == []
    if mode:
        assert handled(queue) == {"dead_lettered": 1, "retried": 1}
    else:
        assert len(broker.sent_back) == 1


async def test_a_failed_message_waits_for_the_window_at_most(pool: StartPool, broker: ScriptedBroker) -> None:
    """No other message is handled meanwhile."""
    clock, database = ManualClock(), Database(away=True)
    async with pool(database, clock=clock, circuit=circuit()) as running:
        queue = running.queue(1)
        await eventually(lambda: database.failed == 1, "it fails")
        await clock.advance(WINDOW - 1)
        assert not broker.sent_back
        problem = running.service.explain(queue)
        assert problem is not None
        assert problem.cause == "failing_handler"
        assert problem.evidence.endswith("sent back when a later call succeeds, or 30 s after it failed")
        assert running.service.explain(running.queue(0, number=1)) is None
        await clock.until(lambda: len(broker.sent_back) == 1, "it is sent back", most=2.0)
        await eventually(done(queue), "nothing is left")
        assert running.service.explain(queue) is None
    assert queue.stats.snapshot().exceptions == {"ConnectionError": 1}  # counted once


@pytest.mark.parametrize("limit", [-1, 0])
async def test_a_released_queue_does_not_wait_for_the_circuit(
    pool: StartPool, broker: ScriptedBroker, limit: int
) -> None:
    """Failed messages are sent back even if the circuit is open, so that the next owner handles none twice.

    A message that would become a dead letter is left to the next owner.
    """
    clock, database = ManualClock(), Database()
    database.bad = {(0, 0)}
    options = {"concurrency": 1, "circuit": circuit(1), "max_reconsume_times": limit}
    async with pool(database, clock=clock, **options) as running:
        queue = running.queue(1)
        await eventually(lambda: database.failed == 1, "it fails, and opens the circuit")
        running.give(queue, 3)
        queue.start_release()
        idle = asyncio.create_task(queue.wait_idle())
        await clock.until(idle.done, "the queue can be released", most=1.0)
        await idle
    assert len(broker.sent_back) == queue.commit_offset() == (1 if limit else 0)
    assert not broker.sent


@pytest.mark.parametrize(
    "error", [Retry(), DeadLetter("no"), Suspend(), InvalidPayloadError("no"), LookupError("none such")], ids=repr
)
async def test_decisions_and_message_errors_do_not_open_the_circuit(pool: StartPool, error: Exception) -> None:
    """Message errors are bodies that cannot be read, and exceptions of dead_letter.on."""

    async def handle(batch: Batch) -> None:
        raise error

    failures = FailureOptions(0, 0.2, 5.0, frozenset(), frozenset({"LookupError"}))
    with capture_logs() as logs:
        async with pool(handle, circuit=circuit(2, 0.1), failures=failures) as running:
            queue = running.queue(40)
            await eventually(done(queue), "all are sent back or dead-lettered")
    assert events(logs) == []
    assert queue.in_flight == 0


async def test_the_ratio_of_failed_calls_opens_the_circuit_too(pool: StartPool) -> None:
    """Every other call fails: never two in a row."""
    clock, calls = ManualClock(), 0

    async def handle(batch: Batch) -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise ConnectionError("away")

    with capture_logs() as logs:
        async with pool(handle, clock=clock, concurrency=1, circuit=circuit(2, 0.5)) as running:
            running.queue(40)
            await eventually(lambda: events(logs) == ["circuit.opened"], "the circuit opens")
            assert 10 <= calls <= 11  # a ratio needs at least ten calls
    opened = next(entry for entry in logs if entry["event"] == "circuit.opened")
    assert opened["reason"] == "5 of 10 calls failed" or opened["reason"] == "6 of 11 calls failed"
    assert opened["error"] == "ConnectionError: away"


@pytest.mark.parametrize("mode", MODES[1:], ids=IDS[1:])
async def test_a_message_that_has_not_failed_yet_probes_first(pool: StartPool, mode: dict[str, Any]) -> None:
    clock, database = ManualClock(), Database()
    database.bad = {(0, 0)}
    with capture_logs() as logs:
        async with pool(database, clock=clock, concurrency=1, circuit=circuit(1), **mode) as running:
            fill(running, mode, 1)
            await clock.until(lambda: running.service.ready_queues.has_messages, "it waits for its next attempt")
            (running.keyed("k", 1) if "order_by" in mode else running.queue(1, 1))
            await clock.until(lambda: len(events(logs)) == 3, "a call has probed")
    assert events(logs) == ["circuit.opened", "circuit.half_open", "circuit.closed"]


# --- changes while the group runs


def change(running: Pool, options: CircuitOptions | None) -> None:
    assert running.service.circuit is not None
    running.service.circuit.apply_options(options)


@pytest.mark.parametrize("mode", MODES, ids=IDS)
async def test_attempts_count_again_when_the_circuit_is_switched_off(
    pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any]
) -> None:
    """An open circuit is closed at once, even if the handler still fails. Later failures count as attempts."""
    clock, database = ManualClock(), Database(away=True)
    options = {"concurrency": 1, "circuit": circuit(2), "max_reconsume_times": 3, **mode}
    with capture_logs() as logs:
        async with pool(database, clock=clock, **options) as running:
            (queue,) = fill(running, mode, 4)
            await clock.until(lambda: events(logs) == ["circuit.opened"], "the circuit opens")
            calls = database.failed
            change(running, None)
            await clock.until(lambda: database.failed >= calls + 4, "the handler is called again")
            database.away = False
            await clock.until(done(queue), "all is handled")
    assert events(logs) == ["circuit.opened", "circuit.closed"]
    if mode:
        assert max(max(attempts) for attempts in database.attempts.values()) >= 1
    else:
        assert len(broker.sent_back) == 4


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("mode", MODES, ids=IDS)
async def test_hanging_calls_open_the_circuit_and_a_hanging_probe_fails(
    pool: StartPool, mode: dict[str, Any], is_async: bool
) -> None:
    """The probe fails at its deadline. Otherwise the circuit would stay half-open forever."""
    clock, free, let_go, calls = ManualClock(), asyncio.Event(), threading.Event(), []
    are_results_late = "consume_mode" in mode or (bool(mode) and not is_async)
    failing = are_results_late

    def end() -> None:
        if failing:
            raise ConnectionError

    async def hang(batch: Batch) -> None:
        calls.append(batch)
        await free.wait()
        end()

    def block(batch: Batch) -> None:
        calls.append(batch)
        let_go.wait(20)
        end()

    with capture_logs() as logs:
        handle = hang if is_async else block
        async with pool(handle, is_async=is_async, clock=clock, concurrency=6, circuit=circuit(2), **mode) as running:
            queues = fill(running, mode, 2, queues=2)
            await eventually(lambda: len(calls) >= 2, "calls hang")
            await clock.advance(TIMEOUT_SECONDS + 1)
            if are_results_late:  # batches are settled, and failures counted, when the calls end
                let_go.set()
                free.set()
            await clock.until(lambda: "circuit.opened" in events(logs), "the circuit opens")
            before = len(calls)
            await eventually(lambda: running.service.abandoned == 0 or not mode, "the abandoned calls have ended")
            let_go.clear()
            free.clear()
            await clock.advance(OPEN_FOR + 1)
            await eventually(lambda: len(calls) == before + 1, "one call probes")
            await clock.advance(TIMEOUT_SECONDS - OPEN_FOR)
            assert len(calls) == before + 1
            await clock.until(lambda: "circuit.probe_failed" in events(logs), "the probe fails", most=OPEN_FOR + 2)
            failing = False
            free.set()
            let_go.set()
            await clock.until(lambda: all(done(queue)() for queue in queues), "all is handled")
