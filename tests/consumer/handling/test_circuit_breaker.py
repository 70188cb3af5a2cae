"""What a circuit breaker does with calls, and with the messages of those that fail."""

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
from tests.consumer.pool import TIMEOUT_SECONDS, Gate, Pool, StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

OPEN_FOR = 15.0
WINDOW = 30.0
MODES: list[dict[str, Any]] = [{}, {"consume_mode": "orderly"}, {"order_by": "keys"}]
IDS = ["concurrently", "orderly", "order_by"]


def circuit(consecutive: int = 5, ratio: float = 0.0) -> CircuitOptions:
    return CircuitOptions(consecutive, ratio, WINDOW, OPEN_FOR)


class Database:
    """What a handler writes to: it is there or away. Counts calls, and remembers how often each message was tried."""

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
    """Neither the calls that open the circuit nor probes count; and one call probes for all queues."""
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


@pytest.mark.parametrize("mode", MODES[1:], ids=IDS[1:])
async def test_in_place_no_attempt_is_the_last_one_while_the_handler_may_be_to_blame(
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
    assert database.attempts[0][-1] == 0  # they were taken off it
    assert handled(queue) == {"acked": 1, "retried": 5}
    assert not broker.sent


@pytest.mark.parametrize("mode", MODES, ids=IDS)
async def test_a_message_that_fails_alone_is_given_up_as_without_a_circuit(
    pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any]
) -> None:
    """The others get on: it is the message. Its attempts count, and the circuit stays closed."""
    clock, database = ManualClock(), Database()
    database.bad = {(0, 0)}
    options = {"concurrency": 2, "circuit": circuit(3), "max_reconsume_times": 1, **mode}
    with capture_logs() as logs:
        async with pool(database, clock=clock, **options) as running:
            (queue, other) = fill(running, mode, 1, queues=2)
            for _ in range(4 if mode else 2):  # what shows that the handler gets on
                await clock.advance(0.6)
                (running.give_keys(other, ["x"]) if "order_by" in mode else running.give(other, 1))
            await clock.until(done(queue), "it is given up, or sent back")
    assert events(logs) == []
    if mode:
        assert handled(queue) == {"dead_lettered": 1, "retried": 1}
    else:
        assert len(broker.sent_back) == 1


async def test_a_failed_message_is_sent_back_once_a_later_call_succeeds(
    pool: StartPool, broker: ScriptedBroker
) -> None:
    """Until then nothing is known; the success of a call that was under way already tells nothing."""
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


async def test_a_failed_message_waits_for_the_window_at_most(pool: StartPool, broker: ScriptedBroker) -> None:
    """Where nothing else is handled."""
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
    assert queue.stats.snapshot().exceptions == {"ConnectionError": 1}  # told once


@pytest.mark.parametrize("limit", [-1, 0])
async def test_a_queue_that_is_given_up_waits_for_no_verdict(
    pool: StartPool, broker: ScriptedBroker, limit: int
) -> None:
    """What failed of it is sent back, so that the next owner handles nothing twice; while the circuit is open, too.

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
        await clock.until(idle.done, "the queue can be given up", most=1.0)
        await idle
    assert len(broker.sent_back) == queue.commit_offset() == (1 if limit else 0)
    assert not broker.sent


@pytest.mark.parametrize(
    "error", [Retry(), DeadLetter("no"), Suspend(), InvalidPayloadError("no"), LookupError("none such")], ids=repr
)
async def test_what_tells_nothing_of_the_handler_does_not_open_the_circuit(pool: StartPool, error: Exception) -> None:
    """Decisions, bodies that cannot be read, and exceptions of dead_letter.on."""

    async def handle(batch: Batch) -> None:
        raise error

    failures = FailureOptions(0, 0.2, 5.0, frozenset(), frozenset({"LookupError"}))
    with capture_logs() as logs:
        async with pool(handle, circuit=circuit(2, 0.1), failures=failures) as running:
            queue = running.queue(40)
            await eventually(done(queue), "all are sent back or given up")
    assert events(logs) == []
    assert queue.in_flight == 0


async def test_such_a_probe_is_followed_by_another(pool: StartPool, broker: ScriptedBroker) -> None:
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


async def test_one_bad_message_of_a_batch_is_no_failed_call(pool: StartPool, broker: ScriptedBroker) -> None:
    """Where the handler says so: it has handled the others."""
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


async def test_the_share_of_failed_calls_opens_it_too(pool: StartPool) -> None:
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
            assert 10 <= calls <= 11  # with fewer calls than ten a share means nothing
    opened = next(entry for entry in logs if entry["event"] == "circuit.opened")
    assert opened["reason"] == "5 of 10 calls failed" or opened["reason"] == "6 of 11 calls failed"
    assert opened["error"] == "ConnectionError: away"


async def test_an_outage_after_many_successes_opens_it_by_their_share(pool: StartPool, broker: ScriptedBroker) -> None:
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
async def test_an_outage_of_many_probes_gives_up_no_message(
    pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any], messages: int
) -> None:
    """With few messages, each of them is a probe more often than it may be tried."""
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
async def test_a_message_that_always_fails_neither_keeps_the_circuit_open_nor_stays(
    pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any]
) -> None:
    """Probes rotate over messages, and its later failures are no evidence against a handler that handles others."""
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
            await clock.until(done(queue), "it is given up, or sent back")
    assert events(logs) == ["circuit.opened", "circuit.half_open", "circuit.closed"]
    assert handled(queue)["dead_lettered" if mode else "retried"] >= 1


async def test_repetitions_of_failed_messages_do_not_open_the_circuit(pool: StartPool) -> None:
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
async def test_a_message_at_which_probes_hang_costs_no_attempt(
    pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any]
) -> None:
    """Such a probe has failed at its deadline, though its batch waits for the call's result."""
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
            for number in range(4):  # of which the first opens the circuit
                await clock.until(lambda least=number: len(calls) > least, "a call hangs", most=OPEN_FOR + 5)  # type: ignore[misc]
                await clock.advance(TIMEOUT_SECONDS + 1)
                assert events(logs).count("circuit.probe_failed") == number
                calls[-1][1].set()
            await clock.until(done(queue), "it is handled")
    assert [attempts for attempts, _ in calls] == [0, 0, 0, 0]
    assert handled(queue) == {"acked": 1, "retried": 4}


async def test_an_operator_s_pause_and_the_circuit_do_not_end_each_other(pool: StartPool) -> None:
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


# --- other limits while it runs


def change(running: Pool, options: CircuitOptions | None) -> None:
    assert running.service.circuit is not None
    running.service.circuit.change(options)


@pytest.mark.parametrize("mode", MODES, ids=IDS)
async def test_switched_off_it_has_the_handler_called_again_and_attempts_count(
    pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any]
) -> None:
    """An open circuit is closed at once, whatever the handler does; what fails from then on has had an attempt."""
    clock, database = ManualClock(), Database(away=True)
    options = {"concurrency": 1, "circuit": circuit(2), "max_reconsume_times": 3, **mode}
    with capture_logs() as logs:
        async with pool(database, clock=clock, **options) as running:
            (queue,) = fill(running, mode, 4)
            await clock.until(lambda: events(logs) == ["circuit.opened"], "the circuit opens")
            calls = database.failed
            change(running, None)
            await clock.until(lambda: database.failed >= calls + 4, "it is called and called")
            database.away = False
            await clock.until(done(queue), "all is handled")
    assert events(logs) == ["circuit.opened", "circuit.closed"]
    if mode:
        assert max(max(attempts) for attempts in database.attempts.values()) >= 1
    else:
        assert len(broker.sent_back) == 4


@pytest.mark.parametrize(("seconds", "most"), [(1.0, 2.0), (60.0, OPEN_FOR + 1)])
async def test_an_open_circuit_waits_no_longer_than_before_and_than_it_is_told(
    pool: StartPool, seconds: float, most: float
) -> None:
    clock, database = ManualClock(), Database(away=True)
    with capture_logs() as logs:
        async with pool(database, clock=clock, concurrency=1, circuit=circuit(1)) as running:
            fill(running, {}, 2)
            await clock.until(lambda: events(logs) == ["circuit.opened"], "the circuit opens")
            change(running, CircuitOptions(1, 0.0, WINDOW, seconds))
            await clock.until(lambda: "circuit.probe_failed" in events(logs), "a probe is made", most=most)
