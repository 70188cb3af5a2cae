"""Keeps Spark's Python workers from looking for garbage among what they have imported.

pyspark.daemon collects garbage after each task, and scans every object: with pyspark, pyarrow and rmqd some 100,000,
which takes longer than a short task.
"""

from __future__ import annotations

import gc
import os
import threading

from rmqd.process.loop import settle_garbage_collection

_frozen_in = 0  # the process; workers are forked


def is_spark_worker() -> bool:
    """Whether this is a task's thread in a worker process, and not a driver or a test."""
    from pyspark import TaskContext

    return TaskContext.get() is not None and threading.current_thread() is threading.main_thread()


def freeze_imports() -> None:
    """Leave out of later collections what is there now, in a worker process, once.

    It is collected first: code of others may run in the same process, and its garbage would stay for good.
    """
    global _frozen_in
    if _frozen_in != os.getpid() and is_spark_worker():
        _frozen_in = os.getpid()
        gc.collect()
        gc.freeze()


def settle_worker() -> None:
    """Do the same in a process that is a handler's alone, with its thresholds, whenever a handler has started."""
    if is_spark_worker():
        settle_garbage_collection()
