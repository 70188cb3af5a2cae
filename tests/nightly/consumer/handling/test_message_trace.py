"""Message trace of a group: what each call adds to it, and that it is in nobody's way."""

from __future__ import annotations

import pytest

from rmqd.client.client_options import TraceOptions
from rmqd.client.sending import trace_dispatcher
from rmqd.handler_api.batch import Batch, ManualBatch
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.handling.test_message_trace import EXCEPTION, FAILED, SUCCESS, TIME_OUT, Traced, trace_queue
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["trace_queue"]


async def test_a_call_past_its_deadline_has_timed_out(broker: ScriptedBroker, queue: MessageQueue) -> None:
    await broker.store(queue, b"1")
    async with Traced(broker, Blocked(), consume_timeout_seconds=0.01) as traced:
        await eventually(lambda: traced.records("SubAfter"), "it is traced")
    first = traced.records("SubAfter")[0]
    assert (first["success"], first["code"]) == (False, TIME_OUT)


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


async def test_a_group_without_trace_says_nothing(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    await broker.store(queue, b"1")
    async with Traced(broker, seen, trace=None) as traced:
        await seen.has(b"1")
    assert traced.consumer.snapshot().trace_records == {}
    assert [sent for sent in broker.sent if sent.header.topic != TOPIC] == []


async def test_what_a_handler_decided_message_by_message_is_told_so(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    async def handle(batch: Batch) -> None:
        batch.ack(batch[0])
        batch.retry(batch[1])
        raise ValueError("about the third one")

    for number in range(3):
        await broker.store(queue, b"x", properties={"UNIQ_KEY": f"ID{number}"})
    async with Traced(broker, handle, consume_message_batch_max_size=3) as traced:
        await eventually(lambda: len(traced.records("SubAfter")) >= 3, "they are traced")
    codes = {one["id"]: (one["success"], one["code"]) for one in traced.records("SubAfter")}
    assert codes == {"ID0": (True, SUCCESS), "ID1": (False, EXCEPTION), "ID2": (False, EXCEPTION)}


async def test_what_is_rolled_back_has_failed(broker: ScriptedBroker, queue: MessageQueue) -> None:
    async def handle(batch: Batch) -> None:
        assert isinstance(batch, ManualBatch)
        batch.rollback()

    await broker.store(queue, b"1")
    async with Traced(broker, handle, consume_mode="orderly", auto_commit=False) as traced:
        await eventually(lambda: traced.records("SubAfter"), "it is traced")
    assert {(one["success"], one["code"]) for one in traced.records("SubAfter")} == {(False, FAILED)}


async def test_what_a_handler_has_is_told_before_it_ends(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """And told once: a handler that never ends would otherwise leave no trace."""
    handle = Blocked()
    await broker.store(queue, b"1", properties={"UNIQ_KEY": "ID1"})
    async with Traced(broker, handle) as traced:
        await eventually(lambda: traced.records("SubBefore"), "it is told")
        assert traced.records("SubAfter") == []
        handle.release.set()
        await eventually(lambda: traced.records("SubAfter"), "its end is told, too")
    assert [one["request"] for one in traced.records("SubAfter")] == [
        one["request"] for one in traced.records("SubBefore")
    ]


async def test_records_that_are_too_many_are_dropped(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_dispatcher, "MAX_WAITING_CHARACTERS", 0)
    await broker.store(queue, b"1", b"2")
    async with Traced(broker, seen) as traced:
        await seen.has(b"1", b"2")
        await eventually(lambda: traced.consumer.snapshot().trace_records["full"] == 4, "the loss is counted")
    assert traced.records("SubBefore") == []
