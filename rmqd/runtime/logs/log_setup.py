"""The log: one event per line on standard error, as JSON or readable text, including the handlers' own logging.

Callers never wait for the log: lines pass through a bounded queue, and their values are cut (`log_writer`). In a
program that uses rmqd as a library, its events are sent to the standard library's `logging`.
"""

from __future__ import annotations

from rmqd.runtime import structlog_without_rich  # noqa: F401  before structlog, see there

# isort: split

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any, Final, Literal, cast

import structlog
from structlog.typing import EventDict

from rmqd.runtime.logs.log_repeats import RepeatLimiter
from rmqd.runtime.logs.log_writer import LogWriter, create_writer, escape_values, is_event_loop_thread, shorten_values
from rmqd.runtime.plain_text import describe, text_of, traceback_of
from rmqd.wire.topics import without_namespace

# Limit for log lines of other code in the event loop's thread. A line takes about 40 µs, so lines at this rate take a
# fifth of the thread's time.
LINES_PER_SECOND: Final = 5_000
BURST_LINES: Final = 10_000


class RmqdLogHandler(logging.StreamHandler[IO[str]]):
    """A log handler that rmqd added to the root logger. The class distinguishes it from a plugin's log handler."""


class QueueingHandler(RmqdLogHandler):
    """Passes formatted lines to a writer. It holds no lock, so threads do not wait for each other's lines.

    If code other than rmqd logs in the event loop's thread, the rate is limited before lines are formatted, because
    heartbeats and probes wait during formatting. Events of rmqd come from structlog, and RepeatLimiter limits them.
    """

    def __init__(self, writer: LogWriter) -> None:
        super().__init__(cast(IO[str], writer))
        self._writer = writer
        self._left = float(BURST_LINES)
        self._filled_at = time.monotonic()

    def handle(self, record: logging.LogRecord) -> bool:
        """Handle a record as the standard library does, without its lock. Returns True if the line was formatted."""
        if not self.filter(record):
            return False
        if not isinstance(record.msg, dict) and is_event_loop_thread() and not self._may_write():
            self._writer.drop()
            return False
        self.emit(record)
        return True

    def flush(self) -> None:
        """Do nothing: `finish_writing` waits for the writer at the end of the process."""

    def _may_write(self) -> bool:
        now = time.monotonic()
        self._left = min(BURST_LINES, self._left + (now - self._filled_at) * LINES_PER_SECOND)
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


LogFormat = Literal["auto", "json", "console"]

FLUSH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The arguments of the last call of `configure_logging`."""

    level: str
    log_format: LogFormat
    worker: int | None
    namespaces: tuple[str, ...]

    def apply(self) -> None:
        configure_logging(self.level, self.log_format, worker=self.worker, namespaces=self.namespaces)


_SAID_BY_PARENT = {"access.refused"}  # the parent logs these events once for all workers


def configure_logging(
    level: str,
    log_format: LogFormat,
    *,
    stream: IO[str] | None = None,
    worker: int | None = None,
    namespaces: Iterable[str] = (),
) -> None:
    """Send structlog's and the standard library's logs to standard error. May be called again.

    If a `stream` is given, lines are written to it without a queue, so it must not block; a file is suitable.

    A `worker` does not log events that its parent logs for all workers. `namespaces` are removed from rmqd's own lines.
    """
    _plain_names.namespaces = tuple(namespaces)
    _settings.append(LogSettings(level, log_format, worker, _plain_names.namespaces))
    del _settings[:-1]
    terminal = (sys.stderr if stream is None else stream).isatty()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _timestamp,
    ]
    if worker is not None:
        shared.append(lambda _logger, _method, event: event | {"worker": worker})
    writer = None if stream is not None else create_writer(sys.stderr, _tell_dropped)
    handler = RmqdLogHandler(stream) if writer is None else QueueingHandler(writer)
    handler.setFormatter(_formatter(log_format == "console" or (log_format == "auto" and terminal), terminal, shared))
    root = logging.getLogger()
    # Replace only rmqd's log handlers: a reload must not remove a plugin's handler.
    for old in [one for one in root.handlers if isinstance(one, RmqdLogHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # The HTTP server's lines repeat ours, and any client can cause its warnings.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, root.level))
    logging.getLogger("py4j").setLevel(max(logging.WARNING, root.level))  # it logs each call between Java and Python
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *([] if worker is None else [_leave_to_parent]),
            *shared,
            _plain_names,
            repeat_limiter,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=_OwnLogger,
        cache_logger_on_first_use=True,
    )


def log_settings() -> LogSettings:
    """Return the current log settings, for child processes that should log in the same way."""
    return _settings[-1] if _settings else LogSettings("info", "auto", None, ())


def write_line(line: str) -> None:
    """Write a formatted line to standard error, for example a line that a child process sent."""
    writer = create_writer(sys.stderr, _tell_dropped)
    if writer is None:
        print(line, file=sys.stderr)  # noqa: T201 a log line
    else:
        writer.write(f"{line}\n")


def _tell_dropped(count: int) -> None:
    log.warning("log.dropped", count=count)


def _formatter(console: bool, terminal: bool, shared: list[Any]) -> logging.Formatter:
    renderers: list[Any]
    if console:
        colors = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        plain = structlog.dev.plain_traceback
        renderers = [escape_values, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    else:
        renderers = [_in_order, structlog.processors.JSONRenderer(default=text_of)]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.ExceptionRenderer(_traceback),
            shorten_values,
            *renderers,
        ],
    )


def _traceback(exc_info: structlog.typing.ExcInfo) -> str:
    """Format a traceback, even if the exception's attributes raise: its log line must not be lost."""
    return traceback_of(exc_info[1]).removesuffix("\n")


def _timestamp(_logger: object, _method: str, event: EventDict) -> EventDict:
    now = datetime.now(UTC)
    event["timestamp"] = f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z"
    return event


def _in_order(_logger: object, _method: str, event: EventDict) -> EventDict:
    """A structlog processor that puts time, level and event first."""
    return {key: event[key] for key in ("timestamp", "level", "event") if key in event} | dict(event)


def _leave_to_parent(_logger: object, _method: str, event: EventDict) -> EventDict:
    if event.get("event") in _SAID_BY_PARENT:
        raise structlog.DropEvent
    return event


class _OwnLogger(structlog.stdlib.BoundLogger):
    """Logs with the standard library, and catches exceptions from it.

    Message handlers may install filters, log handlers or a record factory. Without this class, an exception in that
    code would be raised at every log line of rmqd, and end groups that do not use it.
    """

    def _proxy_to_logger(self, method_name: str, event: str | None = None, *event_args: str, **event_kw: Any) -> Any:
        try:
            return super()._proxy_to_logger(method_name, event, *event_args, **event_kw)
        except Exception as error:  # noqa: BLE001  see above
            line = {"level": method_name, "event": event, "log_error": describe(error)}
            write_line(json.dumps(_timestamp(None, method_name, line)))


class _PlainNames:
    """A structlog processor that removes namespaces from names. Loggers keep a reference to the processor, so a reload
    changes its `namespaces` instead of replacing it.
    """

    namespaces: tuple[str, ...] = ()

    def __call__(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        for namespace in self.namespaces:
            event.update({key: without_namespace(value, namespace) for key, value in event.items()})
        return event


repeat_limiter = RepeatLimiter()


async def flush_repeats() -> None:
    """Write the counts of repeated errors every few seconds, until cancelled."""
    while True:
        await asyncio.sleep(FLUSH_SECONDS)
        repeat_limiter.flush()


_plain_names = _PlainNames()
_settings: list[LogSettings] = []  # only the last settings
log = structlog.get_logger(__name__)


def use_standard_logging() -> bool:
    """Send rmqd's events to `logging`, by module name. If structlog is already configured, only return False."""
    if structlog.is_configured():
        return False
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.contextvars.merge_contextvars, _as_line],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    return True


def _as_line(logger: object, name: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """Return the event as text, with its exception as `exc_info`, so that `logging` prints the traceback."""
    error = event.pop("exc_info", None)
    text = " ".join([str(event.pop("event")), *(f"{key}={value!r}" for key, value in event.items())])
    return (text,), {"exc_info": error}
