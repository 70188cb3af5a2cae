"""The life of a group on Spark, with fake parts and without a JVM."""

from __future__ import annotations

import asyncio

import pytest

from rmqd.errors import RmqdError
from tests.spark.needed import need
from tests.waiting import eventually

need("pyspark")

from rmqd.spark.engine import group_run  # noqa: E402
from rmqd.spark.engine.running_query import QueryFailedError  # noqa: E402
from rmqd.spark.engine.spark_figures import BatchProgress  # noqa: E402
from rmqd.spark.handlers.range_outcome import RangeOutcome  # noqa: E402
from tests.spark.embedded_broker import queue  # noqa: E402
from tests.spark.test_group_run import (  # noqa: E402
    END,
    running,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_run, "RESET_POLL_SECONDS", 0.02)


LATE = "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


async def test_a_late_python_worker_restarts_the_query_and_not_spark() -> None:
    """A batch in between resets the count. After several late workers in a row the group fails."""
    async with running() as one:
        number = 0
        for _ in range(2):
            await one.query(number + 1)
            one.parts.on_progress(BatchProgress(is_empty=True))
            for _ in range(group_run.MAX_LATE_WORKER_RETRIES):
                number += 1
                (await one.query(number)).end(RuntimeError(LATE))
        last = await one.query(number + 1)
        assert one.parts.log[1:3] == ["start of Spark", "query 1"]
        assert "leave" not in one.parts.log
        last.end(RuntimeError(LATE))
        with pytest.raises(QueryFailedError, match="failed to connect back"):
            await one.task
        assert one.parts.log.count("start of Spark") == 1
        assert one.parts.log[-4:] == END


async def test_a_hanging_handler_is_reported_as_on_the_local_engine() -> None:
    async with running() as one:
        said = "Traceback (most recent call last):\nrmqd.consumer.slots.HandlerHungError: all 20 calls hang\n"
        (await one.query()).end(RuntimeError(said))
        with pytest.raises(QueryFailedError, match="all 20 calls hang"):
            await one.task
        assert one.group.snapshot().handler_hung


async def test_an_error_at_the_start_of_spark_is_reported_unchanged() -> None:
    async with running() as one:
        one.parts.session_error = RmqdError("Spark needs Java 17")
        with pytest.raises(RmqdError, match=r"^Spark needs Java 17$"):
            await one.task
        assert one.parts.log[-1] == "leave"


async def test_a_paused_available_now_group_waits_until_it_is_resumed() -> None:
    """Its query would find nothing, and end for good."""
    async with running(trigger="available_now", paused=True) as one:
        await eventually(lambda: "start of Spark" in one.parts.log, "Spark starts")
        await asyncio.sleep(0.05)
        assert one.parts.queries == []
        one.group.resume()
        query = await one.query()
        one.group.pause()
        query.end()
        one.group.resume()
        (await one.query(2)).end()
        await one.task


async def test_a_group_with_a_corrupt_message_fails_after_its_batch() -> None:
    """The other messages are committed. The next start finds the corrupt message first."""
    async with running() as one:
        query = await one.query()
        query.busy = True
        stuck = RangeOutcome(queue=queue("orders", 0), start=5, end=7, reset_to=6, stop_reason="offset 6 is corrupt")
        query.on_batch([stuck])
        await eventually(query.pause_file.exists, "the query is paused")
        assert not one.task.done()
        query.busy = False
        with pytest.raises(RmqdError, match="offset 6 is corrupt"):
            await one.task
        assert one.parts.log[3:5] == ["stop of the query", "last commit"]
        assert one.group.snapshot().failure == "offset 6 is corrupt"
