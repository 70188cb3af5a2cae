"""Log lines: what stands in them, who writes them, and how repeated ones are held back."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from rmqd.daemon import logs
from rmqd.daemon.log_repeats import MOST_REPEATED_KINDS, RepeatLimiter
from rmqd.daemon.logs import configure_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The logging of the test run is back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    logs.repeats = RepeatLimiter()


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


def test_a_handlers_own_logging_is_joined_in() -> None:
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


def test_the_level_changes_while_it_runs() -> None:
    """A reload may turn debug on, also for loggers that were used before."""
    stream = io.StringIO()
    log = structlog.get_logger("rmqd.test")
    configure_logging("info", "json", stream=stream)
    log.debug("unseen")
    configure_logging("debug", "json", stream=stream)
    log.debug("seen")
    assert [line["event"] for line in written(stream)] == ["seen"]


def test_a_reload_leaves_a_plugins_own_log_handler_alone() -> None:
    """Only our own is replaced."""
    theirs = logging.NullHandler()
    logging.getLogger().addHandler(theirs)
    configure_logging("info", "json", stream=io.StringIO())
    configure_logging("info", "json", stream=(stream := io.StringIO()))
    assert theirs in logging.getLogger().handlers
    structlog.get_logger("rmqd.test").info("once")
    assert len(written(stream)) == 1


def test_the_console_is_for_people() -> None:
    """No JSON, no colours where there is no terminal."""
    stream = io.StringIO()
    configure_logging("info", "console", stream=stream)
    structlog.get_logger("rmqd.test").info("group.started", group="mailer")
    assert "group.started" in stream.getvalue()
    assert "group=mailer" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_a_worker_says_which_it_is() -> None:
    """Lines of several processes come together on one stream."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream, worker=2)
    structlog.get_logger("rmqd.test").info("group.started")
    assert written(stream)[0]["worker"] == 2


def test_a_repeated_error_is_written_once_and_then_counted() -> None:
    """A poison queue does not fill a disk; other places and other levels are not held back."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    log = structlog.get_logger("rmqd.test")
    for _ in range(100):
        log.error("handler.failed", group="mailer", error="boom")
        log.info("pulled")
    log.error("handler.failed", group="other")
    lines = written(stream)
    assert [line["group"] for line in lines if line["event"] == "handler.failed"] == ["mailer", "other"]
    assert sum(line["event"] == "pulled" for line in lines) == 100


def test_a_rare_error_is_not_counted_with_a_frequent_one() -> None:
    """They have the same event and place, and are told apart by their class and by the line that raised them."""
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
    """And those of two calls of one hook."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    for hook, call in [("audit", "wants"), ("audit", "before_batch"), ("limit", "wants"), ("audit", "wants")]:
        structlog.get_logger("rmqd.test").error("hook.failed", group="mailer", hook=hook, call=call)
    said = [(line["hook"], line["call"]) for line in written(stream)]
    assert said == [("audit", "wants"), ("audit", "before_batch"), ("limit", "wants")]


def test_errors_that_all_differ_are_bounded_too() -> None:
    """A handler that makes up an exception class at every message fills no disk either."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    for number in range(1000):
        error = type(f"Error{number}", (Exception,), {})()
        structlog.get_logger("rmqd.test").error("handler.failed", group="mailer", exc_info=error)
    assert len(written(stream)) < 30


def test_what_limits_itself_is_written_each_time() -> None:
    """A refusal comes once a minute, and at once after a reload brought other keys."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    for reason in ("no keys", "wrong keys"):
        structlog.get_logger("rmqd.test").error("access.refused", reason=reason)
    assert [line["reason"] for line in written(stream)] == ["no keys", "wrong keys"]


def test_what_was_held_back_is_reported_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the count, and where it was."""
    stream = io.StringIO()
    limiter = RepeatLimiter(interval_seconds=0)
    monkeypatch.setattr(logs, "repeats", limiter)
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


def test_many_kinds_of_errors_take_bounded_memory() -> None:
    """A thousand places, then the oldest are forgotten."""
    limiter = RepeatLimiter()
    for queue in range(5000):
        limiter(None, "error", {"event": "queue.failed", "queue": queue})
    assert len(limiter._seen) <= MOST_REPEATED_KINDS


def test_fields_of_any_kind_can_be_logged() -> None:
    """A handler's log line must not fail for its values."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    structlog.get_logger("shop").error("odd", topic=["a", "b"], queue={"id": 1}, who=object())
    assert written(stream)[0]["topic"] == ["a", "b"]


def test_importing_logs_does_not_import_rich() -> None:
    """It would take as long as everything else that a start needs."""
    import subprocess
    import sys

    script = "import sys, rmqd.daemon.logs; print([name for name in sys.modules if name.split('.')[0] == 'rich'])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
