"""Message trace of a group: the records of each call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmqd.client.client_options import ClientOptions, TraceOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending import trace_dispatcher
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.handler_api.batch import Batch, DeadLetter, Retry, Suspend
from rmqd.wire.message_queue import MessageQueue
from tests.client.running import running
from tests.consumer.groups import GROUP, group_options, handler_of
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually
from tests.wire.trace_reader import read_trace

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SUCCESS, TIME_OUT, EXCEPTION, FAILED = 0, 1, 2, 4


class Traced:
    """A group with message trace, and its records in the trace topic."""

    def __init__(self, broker: ScriptedBroker, handle: Callable[..., Any], **values: Any) -> None:
        is_async = bool(values.pop("is_async", True))
        self._broker = broker
        self._client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
        values = {"trace": TraceOptions(TRACE_TOPIC, 10), "persist_consumer_offset_interval_seconds": 0.05} | values
        self.consumer = PushConsumer(group_options(**values), handler_of(handle, is_async=is_async), self._client)

    async def __aenter__(self) -> Traced:
        self._running = running(self._client.run())
        await self._running.__aenter__()
        self._task = asyncio.create_task(self.consumer.run())
        return self

    async def __aexit__(self, *details: object) -> None:
        self.consumer.stop(shutdown_timeout_seconds=1)
        await self._task
        await self._running.__aexit__(None, None, None)

    def records(self, kind: str) -> list[dict[str, Any]]:
        """The records of one kind, in order of arrival."""
        messages = [sent for sent in self._broker.sent if sent.header.topic == TRACE_TOPIC]
        return [record for sent in messages for record in read_trace(sent.body) if record["type"] == kind]


@pytest.fixture(autouse=True)
async def trace_queue(broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the trace topic, and shorten the wait before records are sent, which is 5 s in Java."""
    monkeypatch.setattr(trace_dispatcher, "FLUSH_SECONDS", 0.05)
    monkeypatch.setattr(trace_dispatcher, "POLL_SECONDS", 0.01)
    broker.create_topic(TRACE_TOPIC)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("consume_mode", ["concurrently", "orderly"])
@pytest.mark.parametrize("message_model", ["clustering", "broadcasting"])
async def test_each_message_has_a_record_before_and_one_after(
    broker: ScriptedBroker, queue: MessageQueue, tmp_path: Any, is_async: bool, consume_mode: str, message_model: str
) -> None:
    """In every mode and model, in the loop and in threads. A message with TRACE_ON=false has none."""
    seen = Seen()
    for number in (1, 2):
        properties = {"UNIQ_KEY": f"ID{number}", "KEYS": f"order-{number} x", "MSG_REGION": "north"}
        await broker.store(queue, b"%d" % number, properties=properties)
    await broker.store(queue, b"3", properties={"UNIQ_KEY": "ID3", "TRACE_ON": "false"})
    traced = Traced(
        broker,
        seen.handler(is_async=is_async),
        is_async=is_async,
        consume_mode=consume_mode,
        message_model=message_model,
        consume_from_where="first_offset",
        local_offsets_directory=str(tmp_path),
    )
    async with traced:
        await eventually(lambda: len(seen.bodies) == 3, "all are handled")
        await eventually(lambda: traced.consumer.snapshot().trace_records["sent"] == 4, "all is sent")
    before = {one.pop("id"): one for one in traced.records("SubBefore")}
    after = {one.pop("id"): one for one in traced.records("SubAfter")}
    assert before.keys() == after.keys() == {"ID1", "ID2"}
    for number in (1, 2):
        one, other = before[f"ID{number}"], after[f"ID{number}"]
        assert one["request"] == other["request"]
        assert (one["group"], one["region"], one["retries"], one["keys"]) == (GROUP, "north", 0, f"order-{number} x")
        assert (other["group"], other["success"], other["code"], other["keys"]) == (
            GROUP, True, SUCCESS, f"order-{number} x",
        )  # fmt: skip
        assert one["time"] <= other["time"]
    assert before["ID1"]["request"] != before["ID2"]["request"]
    [sent, *_] = [sent for sent in broker.sent if sent.header.topic == TRACE_TOPIC]
    assert set(sent.properties["KEYS"].split()) <= {"ID1", "ID2", "order-1", "order-2", "x"}
    assert sent.header.producer_group == f"_INNER_TRACE_PRODUCER-{GROUP}-CONSUME-1"


@pytest.mark.parametrize(
    ("consume_mode", "raised", "code"),
    [
        ("concurrently", None, SUCCESS),
        ("concurrently", ValueError("no"), EXCEPTION),
        ("concurrently", Retry(), FAILED),
        ("concurrently", DeadLetter("no"), FAILED),
        ("orderly", Suspend(0.01), FAILED),
    ],
)
async def test_the_record_shows_how_a_call_ended(
    broker: ScriptedBroker, queue: MessageQueue, consume_mode: str, raised: Exception | None, code: int
) -> None:
    async def handle(batch: Batch) -> None:
        if raised is not None and batch[0].reconsume_times == 0:
            raise raised

    await broker.store(queue, b"1", properties={"UNIQ_KEY": "ID1"})
    async with Traced(broker, handle, consume_mode=consume_mode) as traced:
        await eventually(lambda: traced.records("SubAfter"), "it is traced")
    first = traced.records("SubAfter")[0]
    assert (first["success"], first["code"]) == (raised is None, code)


async def test_the_end_of_a_group_sends_waiting_records(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_dispatcher, "FLUSH_SECONDS", 3600.0)
    await broker.store(queue, b"1")
    async with Traced(broker, seen) as traced:
        await seen.has(b"1")
        assert traced.records("SubAfter") == []
    assert len(traced.records("SubAfter")) == 1
