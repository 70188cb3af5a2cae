"""OpenTelemetry: a span for every handler call, in the trace of the message's producer.

The module is used only with `tracing.opentelemetry`, and needs the extra `rmqd[otel]`. OpenTelemetry's environment
variables choose the spans and their destination. Failed exports are logged and counted, without the secrets in
OTEL_*_HEADERS. The spans' attributes follow the messaging conventions
(https://opentelemetry.io/docs/specs/semconv/messaging/rocketmq/).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

import structlog
from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import HOST_NAME, PROCESS_PID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.handler_failures import failed_decisions
from rmqd.consumer.hooks import Hook, HookContext
from rmqd.handler_api.batch import Batch, Outcome
from rmqd.runtime.plain_text import escape_surrogates, text_of, traceback_of
from rmqd.version import __version__
from rmqd.wire.messages.message import Message

log = structlog.get_logger(__name__)

REPORT_SECONDS: Final = 60.0
_SECRET_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
_USER_IN_URL: Final = re.compile(r"(?<=//)[^/@\s]+@")


class _Minute:
    """Counts events between two log lines that are at least REPORT_SECONDS apart. May be used in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_at = 0.0
        self._count = 0

    def add(self, count: int) -> int | None:
        """Add `count` events. If the next log line is due, return the count since the last log line; else None."""
        with self._lock:
            self._count += count
            now = time.monotonic()
            if now < self._next_at:
                return None
            self._next_at = now + REPORT_SECONDS
            total, self._count = self._count, 0
            return total


class SdkLogHandler(logging.Handler):
    """A log handler for OpenTelemetry's SDK. It logs at most a line a minute, without the values of OTEL_*_HEADERS."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._secrets = _secrets()
        self._minute = _Minute()

    def emit(self, record: logging.LogRecord) -> None:
        """Called in the thread that logged a record of the SDK."""
        if (count := self._minute.add(1)) is not None:
            log.warning("tracing.sdk_reported", text=self._cleaned(record.getMessage()), held_back=count - 1)

    def _cleaned(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _USER_IN_URL.sub("", text)


def log_sdk_records() -> None:
    """Replace the log output of OpenTelemetry's SDK by rmqd's log events. A second call does nothing."""
    sdk = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, SdkLogHandler) for handler in sdk.handlers):
        sdk.addHandler(SdkLogHandler())
        sdk.propagate = False


class ReportingExporter(SpanExporter):
    """An exporter of spans with OTLP over HTTP, configured by OTEL_EXPORTER_OTLP_*. Called in a thread of the SDK."""

    def __init__(self) -> None:
        self._exporter: SpanExporter = OTLPSpanExporter()
        self._minute = _Minute()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans to the collector. Rejected spans are lost, and logged at most once a minute."""
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001  the SDK would log the error with secrets
            logging.getLogger("opentelemetry.exporter").warning("%s: %s", type(error).__name__, error)
            result = SpanExportResult.FAILURE
        if result is not SpanExportResult.SUCCESS and (lost := self._minute.add(len(spans))) is not None:
            log.warning("tracing.spans_lost", spans=lost)
        return result

    def shutdown(self) -> None:
        """Cancel a running export."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Return True, because this exporter does not buffer spans."""
        return True


def _secrets() -> tuple[str, ...]:
    """Return the values of OTEL_*_HEADERS as configured, as sent, and as errors show them. Longer values are first."""
    found = set()
    for name in _SECRET_VARIABLES:
        text = os.environ.get(name, "")
        for part in (text, *(pair.partition("=")[2] for pair in text.split(","))):
            given, sent = part.strip(), unquote(part.strip())
            found |= {given, sent, repr(sent)[1:-1]}
    return tuple(sorted(found - {""}, key=len, reverse=True))


HOOK_NAME: Final = "opentelemetry"
CLOSE_SECONDS: Final = 3.0


class Telemetry:
    """The tracer of this process. `close` sends the remaining spans."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("rmqd", __version__)

    def hook(self, options: ConsumerOptions) -> Hook:
        """Return the hook that creates a group's spans."""
        spans = GroupSpans(self._tracer, options)
        return Hook(HOOK_NAME, spans.begin, spans.end)

    async def close(self) -> None:
        """Send the remaining spans, and wait at most CLOSE_SECONDS."""
        loop = asyncio.get_running_loop()
        flushed = loop.create_future()

        def flush() -> None:
            try:
                self._provider.force_flush()
            finally:
                with contextlib.suppress(RuntimeError):  # the loop has ended, so no task waits for the future
                    loop.call_soon_threadsafe(flushed.cancel)

        # a daemon thread, so that a collector that does not respond cannot keep the process alive
        threading.Thread(target=flush, name="rmqd.telemetry.flush", daemon=True).start()
        _, waiting = await asyncio.wait((flushed,), timeout=CLOSE_SECONDS)
        if waiting:
            log.warning("tracing.not_flushed", seconds=CLOSE_SECONDS)


def start_telemetry() -> Telemetry:
    """Start to export the spans of this process, including spans that handlers create, as OTEL_* variables configure.

    If a tracer provider exists, for example from `opentelemetry-instrument`, its exporters are used instead.
    """
    former = trace.get_tracer_provider()
    if isinstance(former, TracerProvider):
        return Telemetry(former)
    log_sdk_records()
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "none":
        provider.add_span_processor(BatchSpanProcessor(ReportingExporter()))
    trace.set_tracer_provider(provider)
    return Telemetry(provider)


def _resource() -> Resource:
    """Return the attributes that describe this process in every span. The user's OTEL_* variables override them."""
    whole = Resource({HOST_NAME: os.uname().nodename, PROCESS_PID: os.getpid()}).merge(Resource.create())
    is_named = not str(whole.attributes[SERVICE_NAME]).startswith("unknown_service")
    return whole if is_named else whole.merge(Resource({SERVICE_NAME: "rmqd"}))


class GroupSpans:
    """Creates a span for each handler call of a group.

    A call with one message belongs to the trace of the message's producer. A call with several messages starts a new
    trace, which is linked to the trace of each producer.
    """

    def __init__(self, tracer: trace.Tracer, options: ConsumerOptions) -> None:
        self._tracer = tracer
        self._timeout = options.consume_timeout_seconds
        self._attributes: dict[str, AttributeValue] = {
            "messaging.system": "rocketmq",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.rocketmq.consumption_model": options.message_model,
            "messaging.rocketmq.namespace": options.namespace,
        }

    def begin(self, batch: Batch, context: HookContext) -> None:
        """Called before a handler call: start a span, and make it the current span for the handler."""
        first = batch[0]
        attributes = self._attributes | {
            "messaging.consumer.group.name": context.group,
            "messaging.client.id": context.client_id,
            "messaging.destination.name": first.topic,
            "messaging.destination.partition.id": str(context.message_queue.queue_id),
        }
        if len(batch) == 1:
            parent = propagate.extract(first.properties)
            links = []
            attributes |= _message_attributes(first)
        else:
            parent = Context()
            links = [link for message in batch if (link := _link_to_sender(message)) is not None]
            attributes["messaging.batch.message_count"] = len(batch)
        span = self._tracer.start_span(
            f"process {first.topic}", parent, SpanKind.CONSUMER, attributes, links, record_exception=False
        )
        context.values[HOOK_NAME] = span, contexts.attach(trace.set_span_in_context(span, parent))

    def end(self, batch: Batch, context: HookContext) -> None:
        """Called after a handler call: end the span with the decisions about the messages."""
        found: tuple[trace.Span, Any] | None = context.values.get(HOOK_NAME)
        if found is None:
            return
        span, token = found
        contexts.detach(token)
        try:
            if span.is_recording():
                self._describe_end(span, batch, context)
        finally:
            span.end()

    def _describe_end(self, span: trace.Span, batch: Batch, context: HookContext) -> None:
        outcomes = Counter(decision.outcome for decision in failed_decisions(batch, context.exception).values())
        for outcome in (Outcome.RETRY, Outcome.DEAD_LETTER):
            if outcomes[outcome]:
                span.set_attribute(f"rmqd.{outcome.value}_count", outcomes[outcome])
        if context.exception is None and not outcomes:
            return
        error, error_type = context.exception, "retry"
        if context.outcome == "cut_short":
            is_late = (context.duration_seconds or 0.0) >= self._timeout
            error_type = "timeout" if is_late else "cancelled"
        elif context.outcome == "failed" and error is not None:
            error_type = _name_of(type(error))
            # `record_exception` fails if the exception's `str` raises, and a text that cannot be encoded makes the
            # export of all spans of the same batch fail. So the event is added here with safe texts.
            span.add_event(
                "exception",
                {
                    "exception.type": error_type,
                    "exception.message": text_of(error),
                    "exception.stacktrace": traceback_of(error),
                    "exception.escaped": "False",
                },
            )
        elif outcomes[Outcome.DEAD_LETTER]:
            error_type = "dead_letter"
        span.set_attribute("error.type", error_type)
        span.set_status(Status(StatusCode.ERROR, text_of(error) if error is not None else None))


def _message_attributes(message: Message) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {"messaging.message.id": message.msg_id}
    if message.tags:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = message.keys.split()
    if message.reconsume_times:
        attributes["rmqd.reconsume_times"] = message.reconsume_times
    return attributes


def _link_to_sender(message: Message) -> Link | None:
    sender = trace.get_current_span(propagate.extract(message.properties, Context())).get_span_context()
    return Link(sender, {"messaging.message.id": message.msg_id}) if sender.is_valid else None


def _name_of(kind: type) -> str:
    module = kind.__module__
    return escape_surrogates(kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}")
