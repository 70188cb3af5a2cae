"""Converts the standard error of Spark's processes to events of rmqd's log.

Java's log lines, and log lines of handlers in Spark's Python processes, go to the standard error that the JVM inherits.
To keep a log of JSON lines valid, standard error is replaced by a pipe, and a thread reads it.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import structlog

from rmqd.process.logs import logs

log = structlog.get_logger(__name__)

QUIET_SECONDS: Final = 0.2  # events of several lines, such as tracebacks, arrive without such a pause
MOST_CHARACTERS: Final = 8000
MOST_LINES: Final = 1000  # limit for one event; further lines are dropped
MOST_LINE_BYTES: Final = 1024 * 1024
READ_BYTES: Final = 65536
SETTLE_SECONDS: Final = 1.0
MARK: Final = "-- rmqd: all that was written before is to be in the log --"
# `26/11/21 20:14:14 WARN DAGScheduler: Failed to cancel job group 2e2d1447`
_JAVA_EVENT: Final = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (FATAL|ERROR|WARN|INFO|DEBUG|TRACE) ([\w.$]+): (.*)")
_LEVELS: Final = {"FATAL": "error", "ERROR": "error", "WARN": "warning", "INFO": "info"}
# Printed at every start or stop, and never useful
_NOISE: Final = (
    "WARNING: Using incubator modules",
    "Using Spark's default log4j profile",
    "Setting default log level to",
    "Setting Spark log level to",
    "To adjust logging level use",
    "Failed to cancel job group",  # printed when an idle query is stopped
)
_NOISY_SOURCES: Final = ("Utils", "NativeCodeLoader", "ResolveWriteToStream")

_caught, _settled = threading.Event(), threading.Event()


def catch_output(log_format: str) -> None:
    """Redirect the standard error of processes started from now on into the log. Call it before configuring logging.

    This process's own log goes to the original standard error. Does nothing if spark-submit has started Java.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    lines = OutputLines(_write_raw if as_json else _log_again, _settled.set)
    _caught.set()
    threading.Thread(target=_read, args=(reading, lines), name="rmqd.spark.output", daemon=True).start()


def settle_output() -> None:
    """Wait until all output so far is in the log. Call it before the process ends."""
    if not _caught.is_set():
        return
    _settled.clear()
    os.write(2, f"\n{MARK}\n".encode())
    _settled.wait(SETTLE_SECONDS)


class OutputLines:
    """Combines lines into events. `relay` receives events of rmqd's own log, as text and as values."""

    def __init__(self, relay: Callable[[str, dict[str, Any]], None], settled: Callable[[], None]) -> None:
        self._relay = relay
        self._settled = settled
        self._rest = b""
        self._source = self._level = ""
        self._lines: list[str] = []

    def feed(self, data: bytes) -> None:
        """Add output, which may be cut anywhere."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MOST_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._take(line.decode("utf-8", "replace").rstrip("\r"))

    def pause(self) -> None:
        """Called when no output arrived for a while: the current event is complete."""
        if not self._lines:
            return
        text, level = "\n".join(self._lines).rstrip()[:MOST_CHARACTERS], self._level
        source = {"source": self._source} if self._source else {}
        self._lines = []
        if text.startswith(_NOISE) or (self._source in _NOISY_SOURCES and level == "warning"):
            level = "debug"
        match level:
            case "error":
                log.error("spark.output_read", text=text, **source)
            case "warning":
                log.warning("spark.output_read", text=text, **source)
            case "info":
                log.info("spark.output_read", text=text, **source)
            case _:
                log.debug("spark.output_read", text=text, **source)

    def _take(self, line: str) -> None:
        if line == MARK:
            self.pause()
            self._settled()
        elif line.startswith("{") and (values := _event(line)) is not None:
            self.pause()
            self._relay(line, values)
        elif found := _JAVA_EVENT.match(line):
            self.pause()
            self._level, self._source = _LEVELS.get(found[1], "debug"), found[2]
            self._lines = [found[3]]
        elif self._lines and not line.startswith(_NOISE):
            if len(self._lines) < MOST_LINES:
                self._lines.append(line)
        elif line.strip():
            self.pause()
            self._level, self._source, self._lines = "info", "", [line]


def _event(line: str) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) and isinstance(values.get("event"), str) else None


def _write_raw(line: str, _values: dict[str, Any]) -> None:
    logs.write_line(line)


def _log_again(_line: str, values: dict[str, Any]) -> None:
    fields = {name: value for name, value in values.items() if name not in ("timestamp", "level", "logger", "event")}
    again = structlog.get_logger(str(values.get("logger", __name__)))
    write = getattr(again, str(values.get("level", "info")), again.info)
    write(values["event"], **fields)


def _read(descriptor: int, lines: OutputLines) -> None:
    while True:
        ready, _, _ = select.select([descriptor], [], [], QUIET_SECONDS)
        if not ready:
            lines.pause()
            continue
        data = os.read(descriptor, READ_BYTES)
        if not data:
            return
        lines.feed(data)
