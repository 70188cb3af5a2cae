"""Exports spans to the collector. Failures are logged and counted, without the secrets of OTEL_*_HEADERS."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = structlog.get_logger(__name__)

REPORT_SECONDS: Final = 60.0
_SECRET_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
_USER_IN_URL: Final = re.compile(r"(?<=//)[^/@\s]+@")


class SdkWords(logging.Handler):
    """A log handler for OpenTelemetry's SDK: at most one line a minute, without the values of OTEL_*_HEADERS."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._secrets = _secrets()
        self._next_at = 0.0
        self._held_back = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record of the SDK. Called in the thread that logged it."""
        now = time.monotonic()
        if now < self._next_at:
            self._held_back += 1
            return
        self._next_at = now + REPORT_SECONDS
        held_back, self._held_back = self._held_back, 0
        log.warning("tracing.sdk_reported", text=self._cleaned(record.getMessage()), held_back=held_back)

    def _cleaned(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _USER_IN_URL.sub("", text)


def report_the_sdks_own_words() -> None:
    """Log the SDK's log records as rmqd events from now on."""
    sdk = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, SdkWords) for handler in sdk.handlers):
        sdk.addHandler(SdkWords())
        sdk.propagate = False


class ReportingExporter(SpanExporter):
    """Exports with OTLP over HTTP, configured by the variables OTEL_EXPORTER_OTLP_*. Called in a thread of the SDK."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self._exporter = exporter or OTLPSpanExporter()
        self._lock = threading.Lock()
        self._lost = 0
        self._report_at = 0.0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans. Spans that the collector does not accept are lost, which is logged once a minute."""
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001  the SDK would log its unfiltered text
            logging.getLogger("opentelemetry.exporter").warning("%s: %s", type(error).__name__, error)
            result = SpanExportResult.FAILURE
        if result is not SpanExportResult.SUCCESS:
            self._lose(len(spans))
        return result

    def shutdown(self) -> None:
        """Cancel a running export."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Return True: this exporter keeps no spans."""
        return True

    def _lose(self, spans: int) -> None:
        with self._lock:
            self._lost += spans
            now = time.monotonic()
            if now < self._report_at:
                return
            self._report_at = now + REPORT_SECONDS
            lost, self._lost = self._lost, 0
        log.warning("tracing.spans_lost", spans=lost)


def _secrets() -> tuple[str, ...]:
    """Return the values of headers in all forms: as given, as sent, and as shown in errors. Longest first."""
    found = set()
    for name in _SECRET_VARIABLES:
        text = os.environ.get(name, "")
        for part in (text, *(pair.partition("=")[2] for pair in text.split(","))):
            given, sent = part.strip(), unquote(part.strip())
            found |= {given, sent, repr(sent)[1:-1]}
    return tuple(sorted(found - {""}, key=len, reverse=True))
