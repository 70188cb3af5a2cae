"""Keeps the garbage collector of Spark's Python workers from scanning imported modules.

pyspark.daemon collects garbage after each task, and scans every object: about 100,000 with pyspark, pyarrow and rmqd,
which takes longer than a short task.
"""

from __future__ import annotations

import gc
import os
import threading

from rmqd.process.loop import settle_garbage_collection

_frozen_in = 0  # the process id, because workers are forked


def is_spark_worker() -> bool:
    """Return whether this is a task's thread in a worker process, and not a driver or a test."""
    from pyspark import TaskContext

    return TaskContext.get() is not None and threading.current_thread() is threading.main_thread()


def freeze_imports() -> None:
    """Exclude all existing objects from later collections, once in a worker process.

    Garbage is collected first, because garbage of other code in the process would stay for good.
    """
    global _frozen_in
    if _frozen_in != os.getpid() and is_spark_worker():
        _frozen_in = os.getpid()
        gc.collect()
        gc.freeze()


def settle_worker() -> None:
    """Do the same, and set thresholds, in a process that runs only a handler. Called whenever a handler has started."""
    if is_spark_worker():
        settle_garbage_collection()
