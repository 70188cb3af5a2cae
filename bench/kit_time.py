"""The time of a handler's test with rmqd.testing."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable

from rmqd import Batch

ROUNDS = 20
CASE_BUDGET_MS = 200.0
WALK_BUDGET_MS = 1000.0


def measure() -> list[str]:
    """Return two lines with medians: a test of one message, and a test with retries until a dead letter."""
    logging.disable(logging.CRITICAL)
    try:
        loading = _milliseconds(_load)
        case = statistics.median(_milliseconds(lambda: _case(_acknowledge, "acked", 1)) for _ in range(ROUNDS))
        walk = statistics.median(_milliseconds(lambda: _case(_fail, "dead_lettered", 17)) for _ in range(ROUNDS))
    finally:
        logging.disable(logging.NOTSET)
    return [
        f"a handler's test with the kit takes {case:.0f} ms, of {CASE_BUDGET_MS:.0f} allowed, broker and consumer "
        f"included; the first test of a run takes {loading:.0f} ms more to load them",
        f"a test with 16 retries (4 h 46 min) and a dead letter takes {walk:.0f} ms, of {WALK_BUDGET_MS:.0f} allowed",
    ]


def _load() -> None:
    import rmqd.testing.rocketmq  # noqa: F401


def _case(handler: Callable[[Batch], None], outcome: str, attempts: int) -> None:
    """Run a test as the fixtures do, with a new broker. Raises AssertionError if the result is wrong."""
    from rmqd.testing import RocketMQ

    with RocketMQ() as rocketmq:
        rocketmq.create_topic("orders")
        rocketmq.send("orders", "one", keys="order-1")
        result = rocketmq.run_handler(handler, topic="orders", group="mailer")
    ended = result.attempts[-1].outcome
    assert (ended, len(result.attempts)) == (outcome, attempts), result


def _acknowledge(batch: Batch) -> None:
    pass


def _fail(batch: Batch) -> None:
    raise ValueError("no such customer")


def _milliseconds(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000
