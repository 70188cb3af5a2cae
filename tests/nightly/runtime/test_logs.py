"""Log lines: their fields, how they are written, and the limits for repeated lines.

The core of these tests is in tests/runtime/test_logs.py.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import structlog

from rmqd.runtime import plain_text
from rmqd.runtime.logs import log_setup as log_handlers
from rmqd.runtime.logs import log_writer as writer
from rmqd.runtime.logs.log_repeats import MAX_COUNTED_ERRORS, RepeatLimiter
from rmqd.runtime.logs.log_setup import configure_logging
from rmqd.runtime.logs.log_writer import finish_writing
from tests.consumer.handling.odd_handlers import NoAttributes, NoText, NoTextToSpeakOf, nested_groups, odd_syntax_error
from tests.daemon.daemon_process import write_config
from tests.runtime.test_logs import pipe, read_until, restored, written
from tests.waiting import eventually

__all__ = ["pipe", "restored"]


@pytest.mark.process
@pytest.mark.parametrize(
    "module", ["cli.run_command", "runtime.event_loop", "daemon.daemon", "daemon.workers.worker_main"]
)
def test_a_start_does_not_import_rich(module: str) -> None:
    """The import would take as long as the rest of the start."""
    script = (
        f"import sys, rmqd.{module}, rmqd.runtime.event_loop, rmqd.daemon.daemon; "
        "print([name for name in sys.modules if name.split('.')[0] == 'rich'])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
async def test_a_handler_that_floods_the_log_from_the_event_loop_is_limited(
    pipe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit does not drop rmqd's own events."""
    monkeypatch.setattr(log_handlers, "LINES_PER_SECOND", 1)
    shop = logging.getLogger("shop")
    reader = asyncio.create_task(asyncio.to_thread(read_until, pipe, "end"))
    for _ in range(20_000):
        shop.info("again")
    structlog.get_logger("rmqd.test").info("ours")
    structlog.get_logger("rmqd.test").info("end")
    lines = await reader
    assert any(one["event"] == "ours" for one in lines)
    assert sum(one["event"] == "again" for one in lines) in range(10_000, 10_100)


@pytest.mark.process
async def test_a_daemon_with_a_blocked_log_pipe_responds_and_stops(tmp_path: Path) -> None:
    """Each reload writes a line, and the pipe is full long before the last reload."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rmqd", "run", "--config", str(write_config(tmp_path, "mailer", listen=address)),
        stderr=writing,
    )  # fmt: skip
    os.close(writing)
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            for _ in range(60):
                assert (await _ask(client)).status_code == 200
            assert (await client.get("/livez", timeout=5)).status_code == 200
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(reading)


async def _ask(client: httpx.AsyncClient) -> httpx.Response:
    async def answer() -> httpx.Response | None:
        with suppress(httpx.ConnectError):  # it has not started yet
            return await client.post("/api/v1/reload", timeout=10)
        return None

    return await eventually(answer, "the endpoint answers", 30)


@pytest.mark.process
@pytest.mark.parametrize(
    ("closed", "more"), [(one, more) for one in ("2>&-", "0<&- 1>&- 2>&-") for more in ([], ["--workers", "2"])]
)
async def test_a_daemon_without_standard_streams_runs(tmp_path: Path, closed: str, more: list[str]) -> None:
    """No connection gets the descriptor of a standard stream."""
    await run_without_streams(tmp_path, closed, *more)


async def run_without_streams(folder: Path, closed: str, *more: str) -> None:
    """Start a daemon with some of its standard streams closed, and stop it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f'exec "$@" {closed}', "sh",
        sys.executable, "-m", "rmqd", "run", "--config", str(write_config(folder, "mailer", listen=address)), *more,
    )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            while process.returncode is None:
                with suppress(httpx.ConnectError):  # it has not started yet
                    assert (await client.get("/livez", timeout=10)).status_code == 200
                    break
                await asyncio.sleep(0.01)
        assert os.readlink(f"/proc/{process.pid}/fd/2") == os.devnull
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _make_records_badly() -> None:
    def fail(*_: object, **__: object) -> logging.LogRecord:
        raise KeyError("request_id")

    logging.setLogRecordFactory(fail)


def _add_bad_handler() -> None:
    class Bad(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise KeyError("request_id")

    logging.getLogger().addHandler(Bad())


def _filter_badly() -> None:
    def fail(_: logging.LogRecord) -> bool:
        raise KeyError("request_id")

    logging.getLogger().handlers[-1].addFilter(fail)


@pytest.mark.parametrize("spoil", [_make_records_badly, _add_bad_handler, _filter_badly])
def test_errors_of_foreign_logging_code_are_not_raised_to_our_callers(
    spoil: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A short form of the event is written, with the error in `log_error`."""
    configure_logging("info", "json", stream=io.StringIO())
    before = logging.getLogRecordFactory()
    try:
        spoil()
        structlog.get_logger("rmqd.test").warning("pull.failed", group="mailer")
    finally:
        logging.setLogRecordFactory(before)
    [line] = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["event"], told["log_error"]) == ("warning", "pull.failed", "KeyError: 'request_id'")


def test_a_reload_keeps_a_plugins_log_handler() -> None:
    """Only rmqd's log handler is replaced."""
    theirs = logging.NullHandler()
    logging.getLogger().addHandler(theirs)
    configure_logging("info", "json", stream=io.StringIO())
    configure_logging("info", "json", stream=(stream := io.StringIO()))
    assert theirs in logging.getLogger().handlers
    structlog.get_logger("rmqd.test").info("once")
    assert len(written(stream)) == 1


def test_the_console_format_is_readable_text() -> None:
    """Without JSON, and without colours if the stream is not a terminal."""
    stream = io.StringIO()
    configure_logging("info", "console", stream=stream)
    structlog.get_logger("rmqd.test").info("group.started", group="mailer")
    assert "group.started" in stream.getvalue()
    assert "group=mailer" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_a_workers_lines_have_its_number() -> None:
    """Several processes write to one stream."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream, worker=2)
    structlog.get_logger("rmqd.test").info("group.started")
    assert written(stream)[0]["worker"] == 2


def test_a_rare_error_is_not_counted_with_a_frequent_one() -> None:
    """They have the same event and queue, but differ in their class or in the line that raised them."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    log = structlog.get_logger("rmqd.test")

    def refuse() -> None:
        raise ConnectionError("no server")

    def refuse_otherwise() -> None:
        raise ConnectionError("no route")

    def forget() -> None:
        raise KeyError("customer_id")

    for call in [*[refuse] * 40, forget, *[refuse] * 40, refuse_otherwise]:
        try:
            call()
        except (ConnectionError, KeyError) as error:
            log.exception("handler.failed", group="mailer", queue="orders@a:0", error=repr(error))
    lines = [line["error"] for line in written(stream)]
    assert lines == ["ConnectionError('no server')", "KeyError('customer_id')", "ConnectionError('no route')"]


def test_failures_of_two_hooks_are_two_errors() -> None:
    """Failures of two methods of one hook are two errors too."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    for hook, call in [("audit", "wants"), ("audit", "before_batch"), ("limit", "wants"), ("audit", "wants")]:
        structlog.get_logger("rmqd.test").error("hook.failed", group="mailer", hook=hook, call=call)
    said = [(line["hook"], line["call"]) for line in written(stream)]
    assert said == [("audit", "wants"), ("audit", "before_batch"), ("limit", "wants")]


def test_errors_that_all_differ_are_limited_too() -> None:
    """A handler that creates an exception class for every message does not fill the disk."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    for number in range(1000):
        error = type(f"Error{number}", (Exception,), {})()
        structlog.get_logger("rmqd.test").error("handler.failed", group="mailer", exc_info=error)
    assert len(written(stream)) < 30


def test_events_that_limit_themselves_are_written_each_time() -> None:
    """A refusal is logged once a minute, and immediately after a reload with other keys."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    for reason in ("no keys", "wrong keys"):
        structlog.get_logger("rmqd.test").error("access.refused", reason=reason)
    assert [line["reason"] for line in written(stream)] == ["no keys", "wrong keys"]


def test_many_kinds_of_errors_take_bounded_memory() -> None:
    """After MAX_COUNTED_ERRORS kinds, the oldest are forgotten."""
    limiter = RepeatLimiter()
    for queue in range(MAX_COUNTED_ERRORS + 500):
        limiter(None, "error", {"event": "queue.failed", "queue": queue})
    assert len(limiter._seen) <= MAX_COUNTED_ERRORS


def test_fields_of_any_kind_can_be_logged() -> None:
    """A handler's log line must not fail because of its values."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    structlog.get_logger("shop").error("odd", topic=["a", "b"], queue={"id": 1}, who=object())
    assert written(stream)[0]["topic"] == ["a", "b"]


@pytest.mark.parametrize("make", [NoAttributes, NoText, NoTextToSpeakOf, odd_syntax_error, nested_groups])
def test_an_error_that_cannot_be_printed_is_logged(make: Callable[[], BaseException]) -> None:
    """The exception's own methods raise, for its text and for its traceback."""
    logging.getLogger().handlers.clear()  # pytest's handlers cannot write it
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    error = make()
    structlog.get_logger("rmqd.test").error("handler.failed", error=error, exc_info=error)
    (line,) = written(stream)
    assert (line["event"], type(line["error"])) == ("handler.failed", str)
    assert line["exception"]


def test_a_fast_thread_loses_no_line_if_the_log_is_read(pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread waits for the reader."""
    monkeypatch.setattr(writer, "QUEUE_BYTES", 256 * 1024)
    shop, line = logging.getLogger("shop"), "x" * 4000

    def log_much() -> None:
        for _ in range(500):
            shop.info(line)
        structlog.get_logger("rmqd.test").info("end")

    thread = threading.Thread(target=log_much)
    thread.start()
    lines = read_until(pipe, "end")
    thread.join()
    assert sum(one["event"] == line for one in lines) == 500


def test_a_closed_log_pipe_is_not_an_error(pipe: int) -> None:
    """Later lines are lost."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), pipe)  # the only other end is closed
    for _ in range(100):
        structlog.get_logger("rmqd.test").info("unheard")
    finish_writing()


def test_secrets_are_hidden_in_every_notation() -> None:
    """As plain text, in a URL, and in Python's `repr`."""
    plain_text.register_secret(key := "a+b/\\9==")
    assert plain_text.hide_secrets(f"{key} {key!r} a%2Bb%2F%5C9%3D%3D") == "(hidden) '(hidden)' (hidden)"
