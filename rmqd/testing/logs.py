"""Sends the log of broker and consumer to `logging` while a test runs, unless the test has configured structlog."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from typing import Any

import structlog


@contextlib.contextmanager
def logs_by_logging() -> Iterator[None]:
    """Hand log events to the standard library's `logging`, whose lines pytest shows when a test fails.

    If structlog is configured already, such as by the tested program, it is not changed.
    """
    if structlog.is_configured():
        yield
        return
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.contextvars.merge_contextvars, _as_line],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    try:
        yield
    finally:
        structlog.reset_defaults()


def _as_line(logger: object, name: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """The event as text, with its exception as `exc_info`, so that `logging` shows the traceback line by line."""
    error = event.pop("exc_info", None)
    text = " ".join([str(event.pop("event")), *(f"{key}={value!r}" for key, value in event.items())])
    return (text,), {"exc_info": error}
