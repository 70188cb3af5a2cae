"""`python -m rmqd.spark.engine.driver DESCRIPTOR`: the process that runs Spark for one group of a daemon.

`rmqd run` starts this process like a worker process. Through the socket DESCRIPTOR it receives the group's
specification, and reports the group's state on request. It drains the group on request, on SIGTERM, or when the daemon
ends; it ignores SIGINT and SIGHUP. `run_group` runs a group without a daemon, and logs the group's metrics.

Java, and handlers in Spark's Python processes, write to the standard error that they inherit from this process. To keep
a log of JSON lines valid, a pipe replaces standard error, and a thread converts the pipe's lines to log events.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog
from pyspark.sql import SparkSession

from rmqd.config.load import configure_log
from rmqd.consumer.stats.stats_snapshot import HANDLED_RESULTS, GroupSnapshot
from rmqd.daemon.groups.spark_group import DriverSpec
from rmqd.errors import ExitCode, RmqdError
from rmqd.runtime.child_process import ChildAnswer, ChildChannel, ChildRequest
from rmqd.runtime.clock import SystemClock
from rmqd.runtime.event_loop import exit_process, run_in_loop
from rmqd.runtime.logs import log_setup as logs
from rmqd.spark import check_versions
from rmqd.spark.engine.group_run import GroupRun, failure_text
from rmqd.spark.engine.spark_parts import GroupRunParts
from rmqd.spark.session.group_spec import GroupSpec

log = structlog.get_logger(__name__)

METRICS_LOG_INTERVAL_SECONDS: Final = 10.0


def run_group(
    spec: GroupSpec,
    stop: threading.Event,
    force_stop: threading.Event,
    on_session: Callable[[SparkSession], None] = lambda session: None,
) -> int:
    """Run a group until `stop` is set and the drain is over. Return the exit code of the process.

    `force_stop` ends the drain at once. Any thread or signal handler may set the two events. `on_session` is called in
    a thread when Spark has started.
    """
    redirect_stderr_to_log(spec.config.log.format)
    configure_log(spec.config)
    try:
        return run_in_loop(_run(spec, stop, force_stop, on_session))
    finally:
        flush_stderr_to_log()


async def _run(
    spec: GroupSpec, stop: threading.Event, force_stop: threading.Event, on_session: Callable[[SparkSession], None]
) -> int:
    clock = SystemClock()
    run = GroupRun(spec, GroupRunParts(spec, clock, on_session), clock)
    loop = asyncio.get_running_loop()
    for event, action in ((stop, run.stop), (force_stop, run.force_stop)):
        _when_set(event, loop, action)
    reporting = asyncio.create_task(_report_figures(run), name="figures")
    try:
        await run.run()
    except Exception as error:
        # an RmqdError is logged in one line; another exception is a bug, and needs its traceback
        is_fault = not isinstance(error, RmqdError)
        log.error("group.failed", group=spec.name, error=failure_text(error), exc_info=is_fault)  # noqa: TRY400
        return ExitCode.FAILURE
    finally:
        reporting.cancel()
        await asyncio.wait({reporting})
        log_group_metrics(run.snapshot())
    return ExitCode.OK


def log_group_metrics(group: GroupSnapshot) -> None:
    log.info(
        "spark.progress_reported",
        group=group.name,
        state=group.state,
        lag=sum(queue.lag or 0 for queue in group.queues),
        batches=0 if group.batches is None else group.batches.duration.count,
        **{result: sum(topic.handled.get(result, 0) for topic in group.topics) for result in HANDLED_RESULTS},
    )


async def _report_figures(run: GroupRun) -> None:
    while True:
        await asyncio.sleep(METRICS_LOG_INTERVAL_SECONDS)
        logs.repeat_limiter.flush()
        log_group_metrics(run.snapshot())


def _when_set(event: threading.Event, loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """Call `action` in the loop when `event` is set. A daemon thread waits, so the process can exit before that."""

    def wait() -> None:
        event.wait()
        if not loop.is_closed():
            loop.call_soon_threadsafe(action)

    threading.Thread(target=wait, name="rmqd.spark.wait", daemon=True).start()


EVENT_END_PAUSE_SECONDS: Final = 0.2  # an event ends if no line arrives for so long; a traceback's lines arrive faster
MAX_EVENT_CHARACTERS: Final = 8000
MAX_EVENT_LINES: Final = 1000  # further lines of the same log event are dropped
MAX_LINE_BYTES: Final = 1024 * 1024
READ_BYTES: Final = 65536
LOG_FLUSH_TIMEOUT_SECONDS: Final = 1.0
END_OF_LOG_MARK: Final = "-- rmqd: all that was written before is to be in the log --"
# first line of an event in Java's log: `26/11/21 20:14:14 WARN DAGScheduler: Failed to cancel job group 2e2d1447`
_JAVA_EVENT: Final = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (FATAL|ERROR|WARN|INFO|DEBUG|TRACE) ([\w.$]+): (.*)")
_LEVELS: Final = {"FATAL": logging.ERROR, "ERROR": logging.ERROR, "WARN": logging.WARNING, "INFO": logging.INFO}
# lines that Spark prints at every start or stop, and that need no action; logged at level debug
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


def redirect_stderr_to_log(log_format: str) -> None:
    """Redirect the standard error of child processes into the log. Call this before logging is configured.

    This process still logs to the original standard error. If spark-submit has started Java, nothing is redirected.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    lines = LogEventBuilder(_write_raw if as_json else _log_again, _settled.set)
    _caught.set()
    threading.Thread(target=_read, args=(reading, lines), name="rmqd.spark.output", daemon=True).start()


def flush_stderr_to_log() -> None:
    """Wait at most a second until the log contains all redirected output. Call this before the process exits."""
    if not _caught.is_set():
        return
    _settled.clear()
    os.write(2, f"\n{END_OF_LOG_MARK}\n".encode())
    _settled.wait(LOG_FLUSH_TIMEOUT_SECONDS)


class LogEventBuilder:
    """Combines the lines of standard error into log events. `settled` is called at the line END_OF_LOG_MARK.

    `relay` is called with each log event that rmqd wrote as JSON in another process: with the line and its values.
    """

    def __init__(self, relay: Callable[[str, dict[str, Any]], None], settled: Callable[[], None]) -> None:
        self._relay = relay
        self._settled = settled
        self._rest = b""
        self._source, self._level = "", logging.INFO
        self._lines: list[str] = []

    def feed(self, data: bytes) -> None:
        """Add bytes that were read from standard error. They may end in the middle of a line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._take(line.decode("utf-8", "replace").rstrip("\r"))

    def end_event(self) -> None:
        """Log the collected lines as one event. Called if no output arrived for EVENT_END_PAUSE_SECONDS."""
        if not self._lines:
            return
        text, level = "\n".join(self._lines).rstrip()[:MAX_EVENT_CHARACTERS], self._level
        source = {"source": self._source} if self._source else {}
        self._lines = []
        if text.startswith(_NOISE) or (self._source in _NOISY_SOURCES and level == logging.WARNING):
            level = logging.DEBUG
        log.log(level, "spark.output_read", text=text, **source)

    def _take(self, line: str) -> None:
        if line == END_OF_LOG_MARK:
            self.end_event()
            self._settled()
        elif line.startswith("{") and (values := _event(line)) is not None:
            self.end_event()
            self._relay(line, values)
        elif found := _JAVA_EVENT.match(line):
            self.end_event()
            self._level, self._source = _LEVELS.get(found[1], logging.DEBUG), found[2]
            self._lines = [found[3]]
        elif self._lines and not line.startswith(_NOISE):
            if len(self._lines) < MAX_EVENT_LINES:
                self._lines.append(line)
        elif line.strip():
            self.end_event()
            self._level, self._source, self._lines = logging.INFO, "", [line]


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


def _read(descriptor: int, lines: LogEventBuilder) -> None:
    while True:
        ready, _, _ = select.select([descriptor], [], [], EVENT_END_PAUSE_SECONDS)
        if not ready:
            lines.end_event()
            continue
        data = os.read(descriptor, READ_BYTES)
        if not data:
            return
        lines.feed(data)


def main(descriptor: int) -> int:
    """Run a group for the daemon at the other end of the inherited socket. Return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        return run_in_loop(_serve(descriptor))
    finally:
        flush_stderr_to_log()


async def _serve(descriptor: int) -> int:
    channel, first = await ChildChannel.to_parent(descriptor)
    if first is None:
        return ExitCode.USAGE
    try:
        run = _build(first.argument)
    except RmqdError as error:
        channel.refuse(first, error)
        await channel.close()
        return ExitCode.CONFIG
    channel.answer(first)
    return await _run_for_daemon(channel, run)


def _build(build: DriverSpec) -> GroupRun:
    config = build.config
    (name,) = config.groups
    redirect_stderr_to_log(config.log.format)
    configure_log(config)
    check_versions()

    import_path = tuple(sys.path)
    spec = GroupSpec(name, config, import_path)
    set_python_path(import_path)
    clock = SystemClock()
    run = GroupRun(spec, GroupRunParts(spec, clock), clock)
    for scope in build.pauses:
        run.pause(scope)
    return run


def set_python_path(path: Iterable[str]) -> None:
    """Set PYTHONPATH, so that Spark's local Python processes find modules such as a handler in the working folder."""
    os.environ["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in path)


async def _run_for_daemon(channel: ChildChannel, run: GroupRun) -> int:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, run.stop)
    helpers = [
        asyncio.create_task(_listen(channel, run), name="requests"),
        asyncio.create_task(logs.flush_repeats(), name="log flush"),
    ]
    try:
        await run.run()
    except Exception as error:
        # the daemon reports the failure, but only this process can log the traceback of a bug
        if not isinstance(error, RmqdError):
            log.exception("spark.driver_failed")
        return ExitCode.FAILURE
    finally:
        channel.post(ChildAnswer(0, run.snapshot()))
        for helper in helpers:
            helper.cancel()
        await asyncio.wait(helpers)
        await channel.close()
    return ExitCode.OK


async def _listen(channel: ChildChannel, run: GroupRun) -> None:
    while (request := await channel.receive()) is not None:
        channel.answer(request, _answer(run, request))
    log.warning("spark.parent_gone", action="drain")
    run.stop()


def _answer(run: GroupRun, request: ChildRequest) -> Any:
    match request.action:
        case "snapshot":
            return run.snapshot()
        case "pause":
            run.pause(request.argument)
        case "resume":
            run.resume(request.argument)
        case "stop":
            run.stop(request.argument)
        case "force_stop":
            run.force_stop()
    return None


if __name__ == "__main__":
    exit_process(main(int(sys.argv[1])))
