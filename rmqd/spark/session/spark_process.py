"""Settings of the Python processes that Spark starts: their log, garbage collection and errors.

pyspark.daemon collects garbage after each task, and scans every object: about 100,000 with pyspark, pyarrow and rmqd,
which takes longer than a short task. So imported modules are excluded from collections.
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


_frozen_in = 0  # the process id, because workers are forked


def is_spark_worker() -> bool:
    """Return whether this is a task's thread in a worker process, and not a driver or a test."""
    from pyspark import TaskContext

    return TaskContext.get() is not None and threading.current_thread() is threading.main_thread()


def exclude_imports_from_gc() -> None:
    """Exclude all existing objects from later collections, once in a worker process.

    Garbage is collected first, because garbage of other code in the process would stay for good.
    """
    global _frozen_in
    if _frozen_in != os.getpid() and is_spark_worker():
        _frozen_in = os.getpid()
        gc.collect()
        gc.freeze()


def configure_worker_gc() -> None:
    """Set up garbage collection in a process that runs only a handler. Called whenever a handler has started."""
    if is_spark_worker():
        from rmqd.runtime.event_loop import enable_gc_after_start  # brings uvloop, which other workers do not need

        enable_gc_after_start()


@contextlib.contextmanager
def show_rmqd_errors_without_traceback() -> Iterator[None]:
    """Make Spark show the text of an RmqdError instead of a traceback. Also a decorator.

    Spark reads an environment variable of the process that raised the error.
    """
    try:
        yield
    except RmqdError:
        if str(getattr(sys.modules["__main__"].__spec__, "name", "")).startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
