"""The life cycle of a group on Spark, over fake parts and without a JVM."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast

import pytest

from rmqd.config.model.root_model import RootConfig
from rmqd.errors import GroupHeldElsewhereError, RmqdError
from rmqd.runtime.clock import SystemClock
from tests.clock import next_millisecond
from tests.spark.needed import need
from tests.waiting import eventually

need("pyspark")

from rmqd.spark.engine import group_run  # noqa: E402
from rmqd.spark.engine.group_run import GroupRun  # noqa: E402
from rmqd.spark.engine.running_query import QueryFailedError  # noqa: E402
from rmqd.spark.engine.spark_figures import BatchProgress  # noqa: E402
from rmqd.spark.engine.spark_parts import GroupRunParts  # noqa: E402
from rmqd.spark.handlers.range_outcome import RangeOutcome  # noqa: E402
from rmqd.spark.session.group_spec import GroupSpec  # noqa: E402
from tests.spark.embedded_broker import queue  # noqa: E402
from tests.spark.fake_spark import FakeParts, FakeQuery  # noqa: E402

HELD = GroupHeldElsewhereError("mailer", "10.0.0.1@spark-1", "local", "10.0.0.2@1", "10.0.0.2")
END = ["stop of the query", "last commit", "leave", "stop of Spark"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_run, "RESET_POLL_SECONDS", 0.02)


class Running:
    """A group that runs."""

    def __init__(self, parts: FakeParts, run: GroupRun, task: asyncio.Task[None]) -> None:
        self.parts = parts
        self.group = run
        self.task = task

    async def query(self, number: int = 1) -> FakeQuery:
        """Wait until query `number` has started and the group runs. Return the query."""
        await eventually(lambda: len(self.parts.queries) >= number, f"query {number} starts")
        await eventually(lambda: self.state == "running", "the group runs")
        return self.parts.queries[number - 1]

    @property
    def state(self) -> str:
        return self.group.snapshot().state


@asynccontextmanager
async def running(trigger: str = "", shutdown_timeout: str = "30s", paused: bool = False) -> AsyncIterator[Running]:
    settings = {
        "engine": "spark",
        "subscriptions": {"orders": "*"},
        "handler": {"plugin": "log"},
        "shutdown_timeout": shutdown_timeout,
        "spark": {"trigger": trigger},
    }
    config = RootConfig.model_validate({"nameserver": "127.0.0.1:1", "groups": {"mailer": settings}})
    parts = FakeParts()
    run = GroupRun(GroupSpec("mailer", config), cast("GroupRunParts", parts), SystemClock())
    if paused:
        run.pause()
    task = asyncio.create_task(run.run())
    try:
        yield Running(parts, run, task)
    finally:
        parts.session_waits.set()
        run.force_stop()
        with suppress(RmqdError):
            await task


async def test_a_stop_drains_the_batch_and_commits_before_leaving() -> None:
    """The driver leaves the group before it stops Spark, which takes long."""
    async with running() as one:
        query = await one.query()
        query.busy = True
        one.group.stop()
        await eventually(query.pause_file.exists, "no further batch starts")
        assert one.state == "draining"
        assert "stop of the query" not in one.parts.log
        query.busy = False
        await one.task
        assert one.parts.log == ["join", "start of Spark", "query 1", *END]
        assert one.state == "stopped"
        assert not query.pause_file.exists(), "the folder of the pause file is deleted"
        one.group.pause()
        assert one.group.snapshot().paused


async def test_a_batch_that_does_not_end_in_time_is_interrupted() -> None:
    async with running(shutdown_timeout="50ms") as one:
        (await one.query()).busy = True
        one.group.stop()
        await one.task
        assert one.parts.log[3:] == ["stop of the query, busy", *END[1:]]


async def test_a_forced_stop_waits_neither_for_the_batch_nor_for_spark() -> None:
    """The checkpoint's offsets are committed anyway."""
    async with running() as one:
        (await one.query()).busy = True
        one.group.stop()
        one.group.force_stop()
        await one.task
        assert one.parts.log[3:] == ["stop of the query, busy", "last commit", "leave"]


async def test_a_stop_while_spark_starts_does_not_wait() -> None:
    async with running() as one:
        one.parts.session_waits.clear()
        await eventually(lambda: "start of Spark" in one.parts.log, "Spark starts")
        one.group.stop()
        await one.task
        assert one.parts.log == ["join", "start of Spark", "leave"]


async def test_a_failed_query_is_reported_by_its_cause() -> None:
    """The pages of text that Spark adds are removed."""
    said = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted\nTraceback (most recent call last):\n"
        '  File "/x.py", line 1, in read\nrmqd.errors.DataLossError: data loss in orders@broker-a:0\n\tat java.base/x'
    )
    async with running() as one:
        (await one.query()).end(RuntimeError(said))
        with pytest.raises(QueryFailedError, match=r"^data loss in orders@broker-a:0$"):
            await one.task
        snapshot = one.group.snapshot()
        assert (snapshot.state, snapshot.failure) == ("failed", "data loss in orders@broker-a:0")
        assert one.parts.log[3:] == END


async def test_a_pause_holds_the_source_until_the_resume() -> None:
    async with running(paused=True) as one:
        query = await one.query()
        assert query.pause_file.exists()
        assert one.group.snapshot().paused
        one.group.resume()
        assert not query.pause_file.exists()
        one.group.pause()
        assert query.pause_file.exists()


async def test_a_group_that_is_held_elsewhere_does_not_start_spark() -> None:
    async with running() as one:
        one.parts.refuses_to_join = HELD
        with pytest.raises(GroupHeldElsewhereError):
            await one.task
        assert one.parts.log == ["join", "leave"]
        assert one.state == "failed"


async def test_a_member_of_another_engine_stops_the_group_after_its_batch() -> None:
    async with running() as one:
        query = await one.query()
        query.busy = True
        one.parts.rival.set_exception(HELD)
        await eventually(query.pause_file.exists, "no further batch starts")
        query.busy = False
        with pytest.raises(GroupHeldElsewhereError):
            await one.task
        assert one.parts.log[3:] == END


def reset(to: int) -> RangeOutcome:
    """The outcome of a range in which an executor found an operator's reset."""
    return RangeOutcome(queue=queue("orders", 0), start=5, end=7, reset_to=to)


@pytest.mark.parametrize("by", ["an executor", "the brokers", "a push"])
async def test_a_reset_group_continues_with_another_query(by: str) -> None:
    """The batch in flight ends first, and its offsets are committed."""
    async with running() as one:
        query = await one.query()
        begun_ms = int(time.time() * 1000)
        await next_millisecond()
        query.busy = True
        if by == "an executor":
            query.on_batch([reset(0)])
            assert query.pause_file.exists(), "set at once: the next batch may start before the event loop runs"
        elif by == "the brokers":
            one.parts.sent = {queue("orders", 0): 0}
        else:
            one.parts.on_reset({queue("orders", 0): 0})
        await eventually(query.pause_file.exists, "no further batch starts")
        assert len(one.parts.queries) == 1
        query.busy = False
        second = await one.query(2)
        assert one.parts.log[3:] == ["stop of the query", "last commit", "query 2"]
        await eventually(lambda: not second.pause_file.exists(), "the new query may start batches")
        held = one.parts.held()[queue("orders", 0)]
        assert held.commit_offset == 0, "operators see the new offset"
        assert held.last_lock_timestamp > begun_ms
        assert one.group.snapshot().failure is None


async def test_an_available_now_group_stops_after_its_query() -> None:
    async with running(trigger="available_now") as one:
        (await one.query()).end()
        await one.task
        assert one.state == "stopped"


async def test_outcomes_and_progress_from_other_threads_are_counted() -> None:
    async with running() as one:
        query = await one.query()
        outcome = RangeOutcome(queue=queue("orders", 0), start=0, end=5, lost_messages=2)
        await asyncio.to_thread(query.on_batch, [outcome])
        phases = {"triggerExecution": 500, "addBatch": 400}
        await asyncio.to_thread(one.parts.on_progress, BatchProgress(False, phases, late_rows=3, watermark="10:04"))
        await eventually(lambda: (batches := one.group.snapshot().batches) is not None and batches.lost == 2, "counted")
        batches = one.group.snapshot().batches
        assert batches is not None
        assert (batches.duration.count, batches.duration.sum, batches.phase_seconds["handling"]) == (1, 0.5, 0.4)
        assert batches.late_rows == 3
