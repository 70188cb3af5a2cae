"""Where the log of broker and consumer goes while a test runs, if nobody has said so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from typing import Any

import structlog


@contextlib.contextmanager
def logs_by_logging() -> Iterator[None]:
    """Hand log events to the standard library's `logging`, whose lines pytest shows with a test that fails.

    A structlog that is configured already, by the tested program for instance, is left alone.
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
    """The event as text; an exception goes along as one, so that `logging` shows its traceback line by line."""
    error = event.pop("exc_info", None)
    text = " ".join([str(event.pop("event")), *(f"{key}={value!r}" for key, value in event.items())])
    return (text,), {"exc_info": error}
