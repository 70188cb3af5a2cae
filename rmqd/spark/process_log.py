"""The log of the Python processes that Spark starts: warnings go to standard error, which Spark stores."""

from __future__ import annotations

import logging
import sys

import structlog

from rmqd.process.logs.values import shorten_values


def log_to_stderr() -> None:
    """Write warnings and errors as lines to standard error, unless logging is already configured.

    Standard output must not be used, because Spark's processes communicate through it.
    """
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                shorten_values,
                structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )
