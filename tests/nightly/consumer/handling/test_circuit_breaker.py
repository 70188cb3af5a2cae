"""What a circuit breaker does with calls, and with the messages of those that fail."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.handler_api.batch import Batch
from tests.clock import ManualClock
from tests.consumer.handling.test_circuit_breaker import IDS, MODES, OPEN_FOR, Database, change, circuit, events, fill
from tests.consumer.pool import TIMEOUT_SECONDS, StartPool, done
from tests.waiting import eventually


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("mode", MODES, ids=IDS)
async def test_calls_that_hang_open_it_and_one_that_probes_does_not_keep_it_half_open(
    pool: StartPool, mode: dict[str, Any], is_async: bool
) -> None:
    """A deadline is a failure of the probe. Without one the circuit would wait for ever."""
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
            if are_results_late:  # their batches wait for the calls, and so do their failures
                let_go.set()
                free.set()
            await clock.until(lambda: "circuit.opened" in events(logs), "the circuit opens")
            before = len(calls)
            await eventually(lambda: running.service.abandoned == 0 or not mode, "the calls are back")
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


async def test_other_limits_hold_for_calls_that_have_failed_already(pool: StartPool) -> None:
    clock, database = ManualClock(), Database(away=True)
    with capture_logs() as logs:
        async with pool(database, clock=clock, concurrency=1, circuit=circuit(10)) as running:
            fill(running, {}, 5)
            await clock.until(lambda: database.failed == 5, "all have failed")
            await clock.advance(1)
            assert events(logs) == []
            change(running, circuit(3))
            await clock.until(lambda: events(logs) == ["circuit.opened"], "the circuit opens", most=1)
