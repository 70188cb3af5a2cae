"""Log lines: their contents, their writers, and the suppression of repeated lines."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from rmqd.runtime import plain_text
from rmqd.runtime.logs import log_setup as logs
from rmqd.runtime.logs import log_writer as writer
from rmqd.runtime.logs.log_repeats import RepeatLimiter
from rmqd.runtime.logs.log_setup import configure_logging
from rmqd.runtime.logs.log_writer import count_dropped_lines, finish_writing


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore the logging of the test run afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    logs.repeat_limiter = RepeatLimiter()


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    """The lines as documents."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_time_level_and_event_first() -> None:
    """One event per line; the time is UTC with milliseconds."""
    stream = io.StringIO()
    configure_logging("info", "auto", stream=stream)
    structlog.get_logger("rmqd.test").info("queue.dropped", group="mailer", queue=3)
    (line,) = written(stream)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"])
    assert (line["level"], line["event"], line["logger"]) == ("info", "queue.dropped", "rmqd.test")
    assert (line["group"], line["queue"]) == ("mailer", 3)


def test_a_password_that_is_a_common_word_changes_no_event_of_rmqd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alerts search for the events. The password is still hidden in values, and in lines of other code."""
    monkeypatch.setattr(plain_text, "known_secrets", {"group": plain_text.HIDDEN})
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    structlog.get_logger("rmqd.daemon").error("group.failed", error="wrong password group")
    logging.getLogger("shop").warning("wrong password group")
    ours, other = written(stream)
    assert (ours["event"], ours["error"]) == ("group.failed", "wrong password (hidden)")
    assert other["event"] == "wrong password (hidden)"


def test_a_handlers_own_logging_is_part_of_the_log() -> None:
    """The standard library's loggers write the same lines, with their extras and their exceptions."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    with structlog.contextvars.bound_contextvars(group="mailer"):
        logging.getLogger("shop.mail").warning("sent %d mails", 3, extra={"customer": 7})
    try:
        int("no number")
    except ValueError:
        logging.getLogger("shop.mail").exception("failed")
    first, second = written(stream)
    assert (first["event"], first["logger"], first["level"]) == ("sent 3 mails", "shop.mail", "warning")
    assert (first["customer"], first["group"]) == (7, "mailer")
    assert "ValueError: invalid literal" in second["exception"]


def test_the_level_can_change_while_the_daemon_runs() -> None:
    """A reload may turn debug on, also for loggers that were used before."""
    stream = io.StringIO()
    log = structlog.get_logger("rmqd.test")
    configure_logging("info", "json", stream=stream)
    log.debug("unseen")
    configure_logging("debug", "json", stream=stream)
    log.debug("seen")
    assert [line["event"] for line in written(stream)] == ["seen"]


def test_a_repeated_error_is_written_once_and_then_counted() -> None:
    """A queue of failing messages does not fill the disk. Lines of other groups and levels are not suppressed."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    log = structlog.get_logger("rmqd.test")
    for _ in range(100):
        log.error("handler.failed", group="mailer", error="boom")
        log.info("pulled")
    log.error("handler.failed", group="other")
    for problem in ("line 3: a tab", "line 3: a tab", "line 9: a colon"):
        log.error("config.reload_refused", problems=[problem])
    lines = written(stream)
    assert [line["problems"] for line in lines if "problems" in line] == [["line 3: a tab"], ["line 9: a colon"]]
    assert [line["group"] for line in lines if line["event"] == "handler.failed"] == ["mailer", "other"]
    assert sum(line["event"] == "pulled" for line in lines) == 100


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("message.dropped", {}),
        ("message.corrupt", {"on_corrupt_message": "skip"}),
        ("payload.invalid", {"acknowledged": True}),
        ("offset.corrected", {"skipped": 10}),
    ],
)
def test_lines_that_are_the_only_trace_of_a_message_are_all_written(event: str, fields: dict[str, object]) -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    for offset in range(500):
        structlog.get_logger("rmqd.test").warning(event, group="prices", queue="prices@a:0", offset=offset, **fields)
    assert [line["offset"] for line in written(stream)] == [*range(500)]


def test_suppressed_lines_are_reported_after_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their count and their group."""
    stream = io.StringIO()
    limiter = RepeatLimiter(interval_seconds=0)
    monkeypatch.setattr(logs, "repeat_limiter", limiter)
    configure_logging("info", "json", stream=stream)
    limiter._interval = 1000
    log = structlog.get_logger("rmqd.test")
    for _ in range(5):
        log.error("handler.failed", group="mailer")
    limiter._interval = 0
    limiter.flush()
    _, summary = written(stream)
    assert (summary["event"], summary["of"], summary["count"]) == ("log.repeated", "handler.failed", 4)
    assert summary["group"] == "mailer"


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The reading end of standard error, which is a pipe of 4 KiB. Only the test reads it."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    stream = os.fdopen(writing, "w", encoding="utf-8")
    monkeypatch.setattr(sys, "stderr", stream)
    logging.getLogger().handlers.clear()  # pytest's own handlers keep every line
    configure_logging("info", "json")
    yield reading
    os.close(reading)  # lines that still wait are discarded
    finish_writing()
    stream.close()


def read_until(reading: int, event: str) -> list[dict[str, Any]]:
    """The lines up to the first line of this event."""
    lines: list[dict[str, Any]] = []
    with os.fdopen(os.dup(reading), encoding="utf-8") as stream:
        while not lines or lines[-1]["event"] != event:
            lines.append(json.loads(stream.readline()))
    return lines


async def test_a_log_that_is_not_read_does_not_block(pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines wait. If there are too many, lines are dropped, and the log has their count in their place."""
    log, line = structlog.get_logger("rmqd.test"), "x" * 4000
    dropped_before = count_dropped_lines()
    monkeypatch.setattr(writer, "QUEUE_BYTES", 256 * 1024)
    for _ in range(300):  # 1.2 MB
        log.info("flood", text=line)
    lines = await asyncio.to_thread(read_until, pipe, "log.dropped")
    written = sum(one["event"] == "flood" for one in lines)
    assert 30 < written < 300
    log.info("end")
    lines += await asyncio.to_thread(read_until, pipe, "end")
    written = sum(one["event"] == "flood" for one in lines)
    said = sum(one["count"] for one in lines if one["event"] == "log.dropped")
    assert written + said == 300
    assert count_dropped_lines() - dropped_before == said


def fail(text: str) -> None:
    """Raise."""
    raise ValueError(text)


class Untellable:
    """An object that cannot be converted to text."""

    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("form", ["json", "console"])
def test_long_values_are_cut(form: Any) -> None:
    """A broker's remark or a handler's error may be megabytes long."""
    stream = io.StringIO()
    logging.getLogger().handlers.clear()  # pytest's own handlers would show the whole text
    configure_logging("info", form, stream=stream)
    log = structlog.get_logger("rmqd.test")
    log.info("asked", remark="r" * 10**7, body=b"b" * 10**7, many=list(range(10**6)), deep={"in": ["d" * 10**6]})
    log.info("odd", number=10**100_000, thing=Untellable())
    try:
        fail("e" * 5_000_000)
    except ValueError:
        log.exception("handler.failed")
        logging.getLogger("shop").exception("f" * 1_000_000)
    assert len(stream.getvalue()) < 100_000
    assert "9991808 more characters" in stream.getvalue()
    assert "and 999900 more" in stream.getvalue()
    assert "Traceback" in stream.getvalue()


def test_the_console_escapes_line_breaks_and_control_characters() -> None:
    """In message keys, in error texts, and in log lines of handlers."""
    stream = io.StringIO()
    configure_logging("info", "console", stream=stream)
    evil = "\x1b[2J\x9b1m\r\n2026-11-22T00:00:00.000Z [info     ] daemon.stopped \u202egnp.exe"
    log = structlog.get_logger("rmqd.test")
    log.info("message.dead_lettered", key=evil, topic="orders\x07")
    logging.getLogger("shop").info("sent to %s", evil)
    try:
        fail(evil)
    except ValueError:
        log.exception("handler.failed")
    text = stream.getvalue()
    assert not set(text) & set("\x1b\x9b\r\x07\u202e")
    assert "\\x1b[2J" in text
    assert not [line for line in text.splitlines()[1:] if line.startswith("2026-11-22T00:00:00.000Z")]


def test_numbers_of_settings_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option such as `max_tokens` has a secret's name. Its value occurs in offsets and counts."""
    monkeypatch.setattr(plain_text, "known_secrets", {})
    for option in ("4096", "3600", "1h", "true", "12345678", "s3cr3t-key"):
        plain_text.register_secret(option)

    text = "4096 messages in 1h at offset 912345678; true; "
    assert plain_text.hide_secrets(f"{text}12345678 s3cr3t-key") == f"{text}(hidden) (hidden)"
