"""`run_handler(..., chaos=True)`: handlers that chaos catches, with their histories, and warnings about its limits."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rmqd
from rmqd import Batch
from rmqd.testing import ChaosSeesLessWarning, NotRepeatableError, RocketMQ, RunResult

Run = Callable[..., RunResult]

_total = 0


@pytest.fixture
def run(rocketmq: RocketMQ, run_handler: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a handler in chaos, with six orders in two queues. A busy machine does not end the search."""
    for name in ("SEARCH_SECONDS", "SHORTEN_SECONDS"):
        monkeypatch.setattr(f"rmqd.testing.chaos.chaos_search.{name}", 120)
    rocketmq.create_topic("orders", queues=2)
    for number in range(6):
        rocketmq.send("orders", {"number": number}, keys=f"order-{number}", queue_id=number % 2)
    return lambda handler, **others: run_handler(handler, topic="orders", **{"group": "books", "chaos": True} | others)


@pytest.fixture
def book() -> Iterator[sqlite3.Connection]:
    """A database outside of the handler."""
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    connection.execute("create table orders (id text primary key, times int)")
    yield connection
    connection.close()


class Counts:
    """Counts up."""

    def __init__(self) -> None:
        self.total = 0

    def handle(self, batch: Batch) -> None:
        self.total += len(batch)


class Keeps:
    """Keeps one row for each order, however often the order is delivered."""

    def __init__(self) -> None:
        self.rows: dict[str | None, bytes] = {}

    async def handle(self, batch: Batch) -> None:
        for message in batch:
            await asyncio.sleep(0)
            self.rows[message.keys] = message.body
            await asyncio.sleep(0)


def counts_in_the_module(batch: Batch) -> None:
    global _total
    _total += 1


def counts_in_a_default(batch: Batch, *, seen: Counter[str] = Counter()) -> None:  # noqa: B006  that is the point
    seen["all"] += 1


class CountsInItsClass:
    total = 0

    async def handle(self, batch: Batch) -> None:
        type(self).total += 1


@rmqd.handler(json=dict)
def counts_payloads(order: dict) -> None:  # type: ignore[type-arg]
    global _total
    _total += order["number"] + 1


def counting_around() -> Callable[[Batch], None]:
    total = 0

    def handle(batch: Batch) -> None:
        nonlocal total
        total += 1

    return handle


def steps(caught: pytest.ExceptionInfo[NotRepeatableError]) -> list[str]:
    """The numbered lines of the timeline."""
    return [line.strip() for line in str(caught.value).splitlines() if line.strip()[:1].isdigit()]


@pytest.mark.parametrize(
    "handler",
    [Counts, Counts(), counts_in_the_module, counts_in_a_default, CountsInItsClass, counts_payloads, counting_around()],
    ids=["class", "object", "global", "default", "class attribute", "typed", "closure"],
)
def test_a_handler_that_counts_up_is_caught_by_one_message_delivered_twice(run: Run, handler: object) -> None:
    with pytest.raises(NotRepeatableError) as caught:
        run(handler)
    first, second = steps(caught)
    assert first.split() == ["1.", *second.split()[1:5], "handled"]
    assert second.endswith("again, because its offset was not committed: handled")


def test_the_error_names_the_difference(run: Run) -> None:
    with pytest.raises(NotRepeatableError, match=r"\n  self\.total: 2, expected 1\n"):
        run(Counts)


def test_a_repeatable_handler_passes_and_keeps_its_state(run: Run) -> None:
    keeps = Keeps()
    result = run(keeps)
    assert len(result.acked) == len(result.attempts) == len(keeps.rows) == 6


def test_a_cancellation_between_mark_and_effect_is_reported_with_its_line(run: Run) -> None:
    class MarksFirst:
        def __init__(self) -> None:
            self.marks: set[str | None] = set()
            self.total = 0

        async def handle(self, batch: Batch) -> None:
            for message in batch:
                if message.keys not in self.marks:
                    self.marks.add(message.keys)
                    await asyncio.sleep(0)
                    self.total += 1

    with pytest.raises(NotRepeatableError, match="the handler's effect") as caught:
        run(MarksFirst)
    first, second = steps(caught)
    assert "cancelled at its await number 1 (test_chaos_finds.py:" in first
    assert second.endswith("again: handled")
    assert "self.total: 0, expected 1" in str(caught.value)


def test_a_handler_that_skips_retries_is_caught_by_an_expired_call(run: Run) -> None:
    class SkipsRetries(Keeps):
        async def handle(self, batch: Batch) -> None:
            if batch[0].reconsume_times == 0:
                await super().handle(batch)

    with pytest.raises(NotRepeatableError, match="at consume_timeout") as caught:
        run(SkipsRetries)
    assert len(steps(caught)) == 2


class TestOfWhatIsWrittenElsewhere:
    def test_rows_are_compared_and_reset(self, run: Run, book: sqlite3.Connection) -> None:
        def rows() -> list[Any]:
            return book.execute("select * from orders").fetchall()

        def count(batch: Batch) -> None:
            book.execute(
                "insert into orders values (?, 1) on conflict do update set times = times + 1", (batch[0].keys,)
            )

        def insert(batch: Batch) -> None:
            book.execute("insert or ignore into orders values (?, 1)", (batch[0].keys,))

        def clear() -> None:
            book.execute("delete from orders")

        with pytest.raises(NotRepeatableError, match=r"\('order-\d', 2\) is unexpected"):
            run(count, state=rows, reset=clear)
        clear()
        run(insert, state=rows, reset=clear, group="others")
        assert len(rows()) == 6

    def test_without_a_reset_messages_are_delivered_twice(self, run: Run, book: sqlite3.Connection) -> None:
        def rows() -> list[Any]:
            return book.execute("select * from orders").fetchall()

        def count(batch: Batch) -> None:
            book.execute(
                "insert into orders values (?, 1) on conflict do update set times = times + 1", (batch[0].keys,)
            )

        with pytest.raises(NotRepeatableError, match="after an undisturbed run") as caught:
            run(count, state=rows)
        assert len(steps(caught)) == 1

    def test_without_a_reset_chaos_warns_that_it_saw_less(self, run: Run, book: sqlite3.Connection) -> None:
        def insert(batch: Batch) -> None:
            book.execute("insert or ignore into orders values (?, 1)", (batch[0].keys,))

        with pytest.warns(ChaosSeesLessWarning, match="Use reset="):
            run(insert, state=lambda: book.execute("select * from orders").fetchall())

    def test_without_a_state_chaos_warns_that_it_saw_less(self, run: Run, book: sqlite3.Connection) -> None:
        def insert(batch: Batch) -> None:
            book.execute("insert or ignore into orders values (?, 1)", (batch[0].keys,))

        with pytest.warns(ChaosSeesLessWarning, match="Use state=") as warned:
            run(insert)
        assert warned[0].filename == __file__


class FailsOnce:
    """Handles each order at its second attempt."""

    def __init__(self) -> None:
        self.failed: set[str | None] = set()
        self.rows: set[str | None] = set()

    @rmqd.handler(json=dict[str, int])
    async def handle(self, order: dict[str, int], message: rmqd.Message) -> None:
        if message.keys not in self.failed:
            self.failed.add(message.keys)
            raise ConnectionError
        self.rows.add(message.keys)


def test_messages_that_a_call_did_not_reach_have_had_no_attempt(run: Run) -> None:
    options = {"consume_mode": "orderly", "consume_message_batch_max_size": 3, "max_reconsume_times": 1}
    run(FailsOnce, **options)


def test_wrong_arguments_are_refused(rocketmq: RocketMQ, run: Run, run_handler: Run) -> None:
    async def state() -> int:
        return 1

    with pytest.raises(TypeError, match="chaos=True"):
        run_handler(Keeps, topic="orders", group="books", state=dict)
    with pytest.raises(TypeError, match="chaos is 'kill'; expected True, or 'kills'"):
        run(Keeps, chaos="kill")
    with pytest.raises(TypeError, match="state is a int; expected"):
        run(Keeps, state=3)
    with pytest.raises(TypeError, match="state is an async function"):
        run(Keeps, state=state)
