"""OpenTelemetry: the daemon's spans as a collector gets them, and a daemon that no collector hinders."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.broker.embedded import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.clock import SystemClock
from rmqd.config.model.root import RootConfig, TracingConfig
from rmqd.daemon.groups.reload import refused_changes
from rmqd.errors import ConfigError
from rmqd.plugins.runnable import load_runnable
from tests.daemon.daemon_process import DaemonProcess, daemon
from tests.process.collector import CONSUMER_KIND, CollectedSpan, Collector
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
    """As the OpenTelemetry instrumentation of Java's producer puts it into a message's properties."""
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
        """Their ids."""
        client = ClientInstance(ClientOptions(nameservers=(self._cluster.nameserver,)))
        try:
            return [(await client.producer.send(message)).msg_id for message in messages]
        finally:
            await client.close()

    def config(self, handler: str, **group: Any) -> Path:
        """A group of this handler."""
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
        """The daemon, until the end of the block."""
        return daemon(self.config(handler, **group), *arguments, environment=self.environment)


@pytest.fixture
async def shop(tmp_path: Path, collector: Collector) -> Any:
    async with embedded_rocketmq(EmbeddedOptions(topics={"T": 1}), SystemClock()) as cluster:
        yield Shop(cluster, tmp_path, collector)


async def spans(collector: Collector, count: int, name: str, running: DaemonProcess) -> list[CollectedSpan]:
    """The first spans of that name, awaited."""

    def found() -> list[CollectedSpan]:
        return [span for span in collector.spans if span.name == name]

    await eventually(lambda: len(found()) >= count, f"{count} spans {name!r}:\n{''.join(running.text)}", 60)
    return found()


async def stop(running: DaemonProcess) -> None:
    running.send(signal.SIGTERM)
    assert await running.exit_code() == 0


@pytest.mark.process
@pytest.mark.parametrize("handler", ["sync", "asynchronous"])
async def test_a_message_is_handled_in_its_producers_trace(shop: Shop, collector: Collector, handler: str) -> None:
    """The parent is the sender's span, and what the handler does is inside of the call's."""
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


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_a_protocol_that_is_not_installed_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "grpc")
    with pytest.raises(ConfigError, match=f"tracing.opentelemetry: {name} is grpc; accepted: http/protobuf"):
        load(tmp_path)


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"tracing.opentelemetry: .*not installed.*pip install 'rmqd\[otel\]'"):
        load(tmp_path)


def test_a_reload_cannot_switch_it() -> None:
    off, on = (RootConfig(tracing=TracingConfig(opentelemetry=value)) for value in (False, True))
    [refused] = refused_changes(off, on)
    assert refused.startswith("tracing.opentelemetry: cannot change from False to True while the daemon runs")
    assert refused_changes(on, on) == ()


def load(folder: Path) -> None:
    path = folder / "rmqd.yaml"
    group = {"subscriptions": {"T": "*"}, "handler": {"plugin": "log"}}
    document = {"nameserver": "a:1", "tracing": {"opentelemetry": True}, "groups": {"mailer": group}}
    path.write_text(json.dumps(document))
    load_runnable(path, environ={})
