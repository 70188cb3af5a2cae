"""Sends the log of broker and consumer to `logging` during a test, unless the test has configured structlog."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import structlog

from rmqd.process.logs.by_logging import log_by_logging


@contextlib.contextmanager
def logs_by_logging() -> Iterator[None]:
    """Pass log events to the standard library's `logging`, whose lines pytest shows when a test fails.

    If structlog is already configured, for example by the tested program, it is not changed.
    """
    if not log_by_logging():
        yield
        return
    try:
        yield
    finally:
        structlog.reset_defaults()
