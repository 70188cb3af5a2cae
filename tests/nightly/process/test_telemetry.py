"""OpenTelemetry: the daemon's spans as a collector gets them, and a daemon that no collector hinders.

The core of these tests is in tests/process/test_telemetry.py.
"""

from __future__ import annotations

import re

import pytest

from rmqd.client.sending.outgoing_message import OutgoingMessage
from tests.process.collector import ERROR_STATUS, Collector
from tests.process.test_telemetry import SECRET, Shop, collector, shop, spans, stop, traceparent
from tests.waiting import eventually

__all__ = ["collector", "shop"]


HANDLED_ONE = re.compile(r'^rmqd_messages_handled_total{.*is_retry="false",result="acked".*} 1', re.MULTILINE)


@pytest.mark.process
async def test_a_batch_is_linked_to_each_of_its_producers(shop: Shop, collector: Collector) -> None:
    others = [f"{number:032x}" for number in (1, 2)]
    messages = [
        OutgoingMessage("T", b"x", properties={"traceparent": traceparent(number, trace_id)})
        for number, trace_id in zip((5, 6), others, strict=True)
    ]
    await shop.send(*messages, OutgoingMessage("T", b"x"))
    async with shop.run("sync", consume_message_batch_max_size=3) as running:
        [span] = await spans(collector, 1, "process T", running)
        await stop(running)
    assert span.attributes["messaging.batch.message_count"] == 3
    assert (span.parent_span_id, span.trace_id in others) == ("", False)
    assert span.links == [(others[0], f"{5:016x}"), (others[1], f"{6:016x}")]
    assert "messaging.message.id" not in span.attributes


@pytest.mark.process
async def test_what_fails_and_what_is_given_up_is_told(shop: Shop, collector: Collector) -> None:
    """A retry is another span in the same trace, with how often it was tried before."""
    orderly = {"consume_mode": "orderly", "suspend_current_queue_time": "10ms"}
    for number, body in enumerate((b"fail", b"give up"), 1):
        await shop.send(OutgoingMessage("T", body, properties={"traceparent": traceparent(number)}))
    async with shop.run("asynchronous", **orderly) as running:
        first, again, dead = await spans(collector, 3, "process T", running)
        await stop(running)
    assert [span.parent_span_id for span in (first, again, dead)] == [f"{number:016x}" for number in (1, 1, 2)]
    assert (first.status, first.attributes["error.type"], first.events) == (ERROR_STATUS, "ValueError", ["exception"])
    assert (first.attributes["rmqd.retry_count"], "rmqd.reconsume_times" in first.attributes) == (1, False)
    assert (again.status, again.attributes["rmqd.reconsume_times"]) == (0, 1)
    assert "error.type" not in again.attributes
    assert (dead.status, dead.attributes["error.type"], dead.events) == (ERROR_STATUS, "dead_letter", [])
    assert dead.attributes["rmqd.dead_letter_count"] == 1


@pytest.mark.process
async def test_workers_have_spans_too_and_their_users_words_about_the_service_hold(
    shop: Shop, collector: Collector
) -> None:
    shop.environment |= {
        "OTEL_SERVICE_NAME": "shop",
        "OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=cellar,deployment.environment.name=test",
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
    }
    await shop.send(
        OutgoingMessage("T", b"unsampled"), OutgoingMessage("T", b"x", properties={"traceparent": traceparent(3)})
    )
    async with shop.run("sync", "--workers", "2") as running:
        [span] = await spans(collector, 1, "process T", running)
        await stop(running)
    names = ("service.name", "service.instance.id", "deployment.environment.name")
    assert [span.resource[name] for name in names] == ["shop", "cellar", "test"]
    assert span.resource["process.pid"] != running.pid
    assert len([one for one in collector.spans if one.name == "process T"]) == 1


@pytest.mark.process
async def test_a_collector_that_refuses_hinders_nothing_and_is_told_without_the_secret(
    shop: Shop, collector: Collector
) -> None:
    collector.status = 401
    await shop.send(*(OutgoingMessage("T", b"x") for _ in range(5)))
    async with shop.run("asynchronous") as running:
        lost = await running.event("tracing.spans_lost")
        said = await running.event("tracing.sdk_reported")
        client = await running.started()
        status = (await client.get("/api/v1/status")).json()
        assert status["groups"][0]["state"] == "running"
        await stop(running)
    assert lost["spans"] >= 1
    assert "401" in said["text"]
    assert SECRET not in "".join(running.text)


@pytest.mark.process
async def test_a_collector_that_is_not_there_delays_the_end_by_seconds_only(shop: Shop) -> None:
    shop.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
    shop.environment["OTEL_BSP_SCHEDULE_DELAY"] = "60000"
    await shop.send(OutgoingMessage("T", b"x"))
    async with shop.run("sync") as running:
        client = await running.started()

        async def is_handled() -> bool:
            return HANDLED_ONE.search((await client.get("/metrics")).text) is not None

        await eventually(is_handled, "the message is handled", 60)
        await stop(running)
    assert running.events("tracing.not_flushed") or running.events("tracing.spans_lost")


@pytest.mark.process
async def test_a_header_that_cannot_be_sent_is_not_shown_in_the_error_about_it(shop: Shop) -> None:
    """The HTTP client's own words quote it."""
    shop.environment["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization={SECRET}%0A{SECRET}"
    await shop.send(OutgoingMessage("T", b"x"))
    async with shop.run("sync") as running:
        said = await running.event("tracing.sdk_reported")
        await running.event("tracing.spans_lost")
        await stop(running)
    assert "header" in said["text"]
    assert SECRET not in "".join(running.text)
