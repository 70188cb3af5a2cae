"""Message trace of a group: the records of each call, without effect on consumption."""

from __future__ import annotations

import pytest

from rmqd.client.client_options import TraceOptions
from rmqd.client.sending import trace_dispatcher
from rmqd.handler_api.batch import Batch, ManualCommitBatch
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.handling.test_message_trace import EXCEPTION, FAILED, SUCCESS, TIME_OUT, Traced, trace_queue
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["trace_queue"]


async def test_an_expired_call_is_traced_as_timed_out(broker: ScriptedBroker, queue: MessageQueue) -> None:
    await broker.store(queue, b"1")
    async with Traced(broker, Blocked(), consume_timeout_seconds=0.01) as traced:
        await eventually(lambda: traced.records("SubAfter"), "it is traced")
    first = traced.records("SubAfter")[0]
    assert (first["success"], first["code"]) == (False, TIME_OUT)


async def test_the_trace_of_a_retried_message_has_its_retry_count(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    await broker.store(queue, b"1", reconsume_times=3)
    async with Traced(broker, seen) as traced:
        await eventually(lambda: traced.records("SubBefore"), "it is traced")
    assert traced.records("SubBefore")[0]["retries"] == 3


async def test_a_missing_trace_topic_does_not_affect_consumption(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Records that could not be sent are counted."""
    bodies = [b"%d" % number for number in range(30)]
    await broker.store(queue, *bodies)
    async with Traced(broker, seen, trace=TraceOptions("missing", 10)) as traced:
        await seen.has(*bodies)
        await broker.committed(GROUP, queue, 30)
        await eventually(lambda: traced.consumer.snapshot().trace_records["failed"], "the loss is counted")
    counts = traced.consumer.snapshot().trace_records
    assert (counts["sent"], counts["full"], counts["failed"]) == (0, 0, 60)


async def test_a_group_without_trace_sends_no_records(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    await broker.store(queue, b"1")
    async with Traced(broker, seen, trace=None) as traced:
        await seen.has(b"1")
    assert traced.consumer.snapshot().trace_records == {}
    assert [sent for sent in broker.sent if sent.header.topic != TOPIC] == []


async def test_decisions_for_single_messages_are_traced(broker: ScriptedBroker, queue: MessageQueue) -> None:
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


async def test_a_rolled_back_message_is_traced_as_failed(broker: ScriptedBroker, queue: MessageQueue) -> None:
    async def handle(batch: Batch) -> None:
        assert isinstance(batch, ManualCommitBatch)
        batch.rollback()

    await broker.store(queue, b"1")
    async with Traced(broker, handle, consume_mode="orderly", auto_commit=False) as traced:
        await eventually(lambda: traced.records("SubAfter"), "it is traced")
    assert {(one["success"], one["code"]) for one in traced.records("SubAfter")} == {(False, FAILED)}


async def test_the_start_of_a_call_is_traced_before_its_end(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """Otherwise a handler that never ends would leave no trace."""
    handle = Blocked()
    await broker.store(queue, b"1", properties={"UNIQ_KEY": "ID1"})
    async with Traced(broker, handle) as traced:
        await eventually(lambda: traced.records("SubBefore"), "the start is traced")
        assert traced.records("SubAfter") == []
        handle.release.set()
        await eventually(lambda: traced.records("SubAfter"), "the end is traced")
    assert [one["request"] for one in traced.records("SubAfter")] == [
        one["request"] for one in traced.records("SubBefore")
    ]


async def test_excess_records_are_dropped(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_dispatcher, "MAX_WAITING_CHARACTERS", 0)
    await broker.store(queue, b"1", b"2")
    async with Traced(broker, seen) as traced:
        await seen.has(b"1", b"2")
        await eventually(lambda: traced.consumer.snapshot().trace_records["full"] == 4, "the loss is counted")
    assert traced.records("SubBefore") == []
