"""The log of a program that uses rmqd as a library: its events are sent to the standard library's `logging`."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import structlog


def log_by_logging() -> bool:
    """Send rmqd's events to `logging`, under the names of their modules. Returns False if structlog is already
    configured.
    """
    if structlog.is_configured():
        return False
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.contextvars.merge_contextvars, _as_line],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    return True


def _as_line(logger: object, name: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """Return the event as text, with its exception as `exc_info`, so that `logging` prints the traceback line by
    line.
    """
    error = event.pop("exc_info", None)
    text = " ".join([str(event.pop("event")), *(f"{key}={value!r}" for key, value in event.items())])
    return (text,), {"exc_info": error}
