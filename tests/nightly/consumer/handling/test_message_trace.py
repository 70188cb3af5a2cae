"""Message trace of a group: what each call adds to it, and that it is in nobody's way."""

from __future__ import annotations

import pytest

from rmqd.client.options import TraceOptions
from rmqd.client.sending import trace_dispatcher
from rmqd.handler_api import Batch, ManualBatch
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.groups import GROUP
from tests.consumer.handling.test_message_trace import FAILED, Traced, trace_queue
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["trace_queue"]


async def test_what_is_rolled_back_has_failed(broker: ScriptedBroker, queue: MessageQueue) -> None:
    async def handle(batch: Batch) -> None:
        assert isinstance(batch, ManualBatch)
        batch.rollback()

    await broker.store(queue, b"1")
    async with Traced(broker, handle, consume_mode="orderly", auto_commit=False) as traced:
        await eventually(lambda: traced.records("SubAfter"), "it is traced")
    assert {(one["success"], one["code"]) for one in traced.records("SubAfter")} == {(False, FAILED)}


async def test_a_retried_message_says_how_often(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    await broker.store(queue, b"1", reconsume_times=3)
    async with Traced(broker, seen) as traced:
        await eventually(lambda: traced.records("SubBefore"), "it is traced")
    assert traced.records("SubBefore")[0]["retries"] == 3


async def test_a_group_without_a_trace_topic_consumes_as_without_trace(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """What could not be sent is counted, and nothing else of it is felt."""
    bodies = [b"%d" % number for number in range(30)]
    await broker.store(queue, *bodies)
    async with Traced(broker, seen, trace=TraceOptions("missing", 10)) as traced:
        await seen.has(*bodies)
        await broker.committed(GROUP, queue, 30)
        await eventually(lambda: traced.consumer.snapshot().trace_records["failed"], "the loss is counted")
    counts = traced.consumer.snapshot().trace_records
    assert (counts["sent"], counts["full"], counts["failed"]) == (0, 0, 60)


async def test_records_that_are_too_many_are_dropped(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_dispatcher, "MOST_WAITING_CHARACTERS", 0)
    await broker.store(queue, b"1", b"2")
    async with Traced(broker, seen) as traced:
        await seen.has(b"1", b"2")
        await eventually(lambda: traced.consumer.snapshot().trace_records["full"] == 4, "the loss is counted")
    assert traced.records("SubBefore") == []
