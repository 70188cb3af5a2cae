"""OpenTelemetry: the spans that a collector receives, and collectors that fail.

Refused configurations are in tests/runtime/test_telemetry.py.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.config.model.root_model import RootConfig, TracingConfig
from rmqd.daemon.groups.group_reload import refused_changes
from rmqd.errors import ConfigError, install_command
from rmqd.runtime.clock import SystemClock
from tests.daemon.daemon_process import DaemonProcess, daemon
from tests.nightly.runtime.collector import CONSUMER_KIND, ERROR_STATUS, CollectedSpan, Collector
from tests.runtime.test_telemetry import load
from tests.waiting import eventually

HANDLERS = """
from opentelemetry import trace
from rmqd import Batch, DeadLetter, Retry

tracer = trace.get_tracer("shop")

def work(batch):
    with tracer.start_as_current_span("own work"):
        if batch[0].body == b"fail" and not batch[0].reconsume_times:
            raise ValueError("it fails")
        if batch[0].body == b"give up":
            raise DeadLetter("no use")

def sync(batch: Batch) -> None:
    work(batch)

async def asynchronous(batch: Batch) -> None:
    work(batch)
"""
SECRET = "bearer-of-bad-news"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def traceparent(number: int, trace_id: str = TRACE) -> str:
    """The message property that the OpenTelemetry instrumentation of Java's producer sets."""
    return f"00-{trace_id}-{number:016x}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


class Shop:
    """A RocketMQ with a topic, and a daemon of one group on it."""

    def __init__(self, cluster: EmbeddedRocketMQ, folder: Path, collector: Collector) -> None:
        self._cluster = cluster
        self._folder = folder
        self.environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={SECRET}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "PYTHONPATH": str(folder),
        }
        (folder / "shop_handlers.py").write_text(HANDLERS)

    async def send(self, *messages: OutgoingMessage) -> list[str]:
        """Send messages and return their ids."""
        client = ClientInstance(ClientOptions(nameservers=(self._cluster.nameserver,)))
        try:
            return [(await client.producer.send(message)).msg_id for message in messages]
        finally:
            await client.close()

    def config(self, handler: str, **group: Any) -> Path:
        """Write a configuration with one group for this handler."""
        path = self._folder / "rmqd.yaml"
        document = {
            "nameserver": self._cluster.nameserver,
            "state_dir": str(self._folder / "state"),
            "http": {"listen": "127.0.0.1:0"},
            "log": {"format": "json"},
            "tracing": {"opentelemetry": True},
            "groups": {
                "mailer": {
                    "subscriptions": {"T": "*"},
                    "consume_from_where": "first_offset",
                    "handler": {"plugin": f"shop_handlers:{handler}"},
                    **group,
                }
            },
        }
        path.write_text(json.dumps(document))
        return path

    def run(self, handler: str, *arguments: str, **group: Any) -> Any:
        """Run the daemon until the end of the block."""
        return daemon(self.config(handler, **group), *arguments, environment=self.environment)


@pytest.fixture
async def shop(tmp_path: Path, collector: Collector) -> Any:
    async with embedded_rocketmq(EmbeddedOptions(topics={"T": 1}), SystemClock()) as cluster:
        yield Shop(cluster, tmp_path, collector)


async def spans(collector: Collector, count: int, name: str, running: DaemonProcess) -> list[CollectedSpan]:
    """Wait for `count` spans with this name, and return all of them."""

    def found() -> list[CollectedSpan]:
        return [span for span in collector.spans if span.name == name]

    await eventually(lambda: len(found()) >= count, f"{count} spans {name!r}:\n{''.join(running.text)}", 60)
    return found()


async def stop(running: DaemonProcess) -> None:
    running.send(signal.SIGTERM)
    assert await running.exit_code() == 0


HANDLED_ONE = re.compile(r'^rmqd_messages_handled_total{.*is_retry="false",result="acked".*} 1', re.MULTILINE)


@pytest.mark.process
@pytest.mark.parametrize("handler", ["sync", "asynchronous"])
async def test_a_message_is_handled_in_its_producers_trace(shop: Shop, collector: Collector, handler: str) -> None:
    """The parent is the sender's span, and the handler's own spans are children of the call's span."""
    properties = {"traceparent": traceparent(17), "tracestate": "shop=1"}
    [msg_id] = await shop.send(OutgoingMessage("T", b"x", tags="paid", keys="order-1 c-2", properties=properties))
    async with shop.run(handler) as running:
        [span] = await spans(collector, 1, "process T", running)
        [own] = await spans(collector, 1, "own work", running)
        await stop(running)
    assert (span.trace_id, span.parent_span_id) == (TRACE, f"{17:016x}")
    assert (own.trace_id, own.parent_span_id) == (TRACE, span.span_id)
    assert (span.kind, span.status, span.links) == (CONSUMER_KIND, 0, [])
    client_id = span.attributes.pop("messaging.client.id")
    assert "@" in client_id
    assert span.attributes == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "mailer",
        "messaging.rocketmq.consumption_model": "clustering",
        "messaging.rocketmq.namespace": "",
        "messaging.message.id": msg_id,
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ["order-1", "c-2"],
    }
    assert span.resource["service.name"] == "rmqd"
    assert span.resource["process.pid"] == running.pid
    assert collector.requests[0]["authorization"] == SECRET
    assert SECRET not in "".join(running.text)


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
async def test_spans_record_failures_and_dead_letters(shop: Shop, collector: Collector) -> None:
    """A retry is another span in the same trace, with the number of earlier attempts."""
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
async def test_workers_have_spans_and_use_the_standard_otel_variables(shop: Shop, collector: Collector) -> None:
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
async def test_a_collector_that_refuses_is_logged_without_the_secret(shop: Shop, collector: Collector) -> None:
    """The groups continue."""
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
async def test_an_unreachable_collector_delays_the_stop_by_seconds_only(shop: Shop) -> None:
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
async def test_the_error_for_an_invalid_header_does_not_show_it(shop: Shop) -> None:
    """The HTTP client's own error quotes the header."""
    shop.environment["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization={SECRET}%0A{SECRET}"
    await shop.send(OutgoingMessage("T", b"x"))
    async with shop.run("sync") as running:
        said = await running.event("tracing.sdk_reported")
        await running.event("tracing.spans_lost")
        await stop(running)
    assert "header" in said["text"]
    assert SECRET not in "".join(running.text)


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    said = f"tracing.opentelemetry: .*not installed.*{re.escape(install_command('otel'))}"
    with pytest.raises(ConfigError, match=said):
        load(tmp_path)


def test_a_reload_cannot_change_tracing_opentelemetry() -> None:
    off, on = (RootConfig(tracing=TracingConfig(opentelemetry=value)) for value in (False, True))
    [refused] = refused_changes(off, on)
    assert refused.startswith("tracing.opentelemetry: cannot change from False to True while the daemon runs")
    assert refused_changes(on, on) == ()
