"""Log, garbage collection and error texts of the Python processes that Spark starts.

pyspark.daemon collects garbage after each task. A collection scans all objects, about 100,000 with pyspark, pyarrow and
rmqd, and takes longer than a short task. So this module excludes imported modules from collections.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator

import structlog

from rmqd.errors import RmqdError
from rmqd.runtime.logs.log_writer import shorten_values


def log_to_stderr() -> None:
    """Log warnings and errors to standard error, unless logging is already configured.

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


_frozen_in = 0  # id of the process that excluded its objects; a worker forked from that process has another id


def is_spark_worker() -> bool:
    """Return whether this code runs in the thread of a Spark task in a worker process, not in a driver or a test."""
    from pyspark import TaskContext

    return TaskContext.get() is not None and threading.current_thread() is threading.main_thread()


def exclude_imports_from_gc() -> None:
    """Exclude all existing objects from later collections. Does nothing outside Spark's workers, or in a second call.

    Garbage is collected first, because excluded garbage would never be freed.
    """
    global _frozen_in
    if _frozen_in != os.getpid() and is_spark_worker():
        _frozen_in = os.getpid()
        gc.collect()
        gc.freeze()


def configure_worker_gc() -> None:
    """Configure garbage collection in a Spark worker process that runs handlers. Call this after starting a handler."""
    if is_spark_worker():
        from rmqd.runtime.event_loop import enable_gc_after_start  # imports uvloop, which other workers do not need

        enable_gc_after_start()


@contextlib.contextmanager
def show_rmqd_errors_without_traceback() -> Iterator[None]:
    """Make Spark show the text of an RmqdError instead of a traceback. Can be used as a decorator.

    Spark reads the environment variable SPARK_HIDE_TRACEBACK in the process that raised the error.
    """
    try:
        yield
    except RmqdError:
        if str(getattr(sys.modules["__main__"].__spec__, "name", "")).startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
