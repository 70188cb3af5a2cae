"""Message trace and spans of a handler group on Spark: executors report messages as the local engine does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rmqd import Batch
from rmqd.config.model.root_model import TracingConfig
from rmqd.plugins import telemetry
from rmqd.wire.topics import TRACE_TOPIC
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need
from tests.wire.trace_reader import read_trace

need("pyspark", "pyarrow")

from tests.spark.handler_batches import GroupQuery, order_of  # noqa: E402

SEEN: list[str] = []
RECORDS: list[dict[str, Any]] = []


async def note(batch: Batch) -> None:
    """Acknowledges everything."""
    SEEN.extend(message.body.decode() for message in batch)


def keep(batch: Batch) -> None:
    """Record the entries of the trace topic."""
    for message in batch:
        RECORDS.extend(read_trace(message.body))


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()
    RECORDS.clear()


def test_messages_that_executors_handle_are_in_the_message_trace(broker: EmbeddedBroker) -> None:
    """They are sent at the latest when the process ends. The counts are in the outcomes of the ranges."""
    broker.fill("orders", 1, 5)
    query = GroupQuery(order_of(broker.nameserver, note, enable_trace=True))
    query.run_until(lambda: len(SEEN) == 5)
    query.process.stop()
    reader = GroupQuery(order_of(broker.nameserver, keep, subscriptions={TRACE_TOPIC: "*"}))
    reader.run_until(lambda: len(RECORDS) >= 10)
    before = {one["id"]: one["request"] for one in RECORDS if one["type"] == "SubBefore"}
    after = {one["id"]: one["request"] for one in RECORDS if one["type"] == "SubAfter"}
    assert before == after
    assert len(before) == 5
    assert {one["group"] for one in RECORDS} == {"shop"}
    assert set(query.outcomes[0].trace_records) == {"sent", "full", "failed"}


def test_executors_continue_the_producers_traces(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, spans = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(telemetry, "start_telemetry", lambda: telemetry.Telemetry(provider))
    broker.create_topic("orders", 1)
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    broker.send("orders", "x", properties={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})
    order = order_of(broker.nameserver, note)
    config = order.config.model_copy(update={"tracing": TracingConfig(opentelemetry=True)})
    query = GroupQuery(replace(order, config=config))
    query.run_until(lambda: SEEN)
    query.process.stop()
    [span] = spans.get_finished_spans()
    assert span.context is not None
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (trace_id, "b7ad6b7169203331")
