"""Message trace of a group: what each call adds to it, and that it is in nobody's way."""

from __future__ import annotations

from rmqd.client.client_options import TraceOptions
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.handling.test_message_trace import TIME_OUT, Traced, trace_queue
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
