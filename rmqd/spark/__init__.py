"""RocketMQ in Spark, through PySpark: `register(spark)`, then `spark.read.format("rocketmq")`.

An extra (`pip install "rmqd[spark]"`): no other room of rmqd imports this one at its top. What is created on a driver
is pickled to executors: readers hold options alone, and connections live in `cluster` and `source.pull_connection`, by
process. Modules that say "Pure" import neither pyspark nor pyarrow, and do no I/O.

`source` and `sink` are the format, for all queries. Groups with `engine: spark` are run by `engine` on the driver, and
by `handlers` or `pipelines` on executors.

    format                     the format `rocketmq`, as Spark finds it
    views                      topics as views of a session
    source, sink               reading topics; writing them
    values                     bodies as a column of a schema: JSON, Avro, Protobuf
    engine                     one group, as the driver runs it
    handlers, pipelines        a group's handler on executors; a group's pipeline and its sinks
    submit                     groups on clusters: packed environments, spark-submit
    driver                     the process that drives Spark for a group of the daemon
    group_order                what driver and executors are told of a group
    queue_range                what one task reads
    session, prepare, java     the Spark session; the environment that it needs; a Java
    cluster, access, answers   questions to brokers from synchronous code, and their answers
    queue_ends                 where queues begin and end
    queue_questions, patience  questions that only drivers ask; asking again while brokers are away
    hadoop_folder              folders on whatever Spark can write to
    option_values              values of options
    worker_garbage             Spark's workers, and how often they look for garbage
    process_log, spark_output  logs of Spark's processes
    discovery                  the folder by which Spark finds the format in installed packages
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rmqd.errors import RmqdError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqd.spark.source.query_lag import QueryLag

LEAST_PYSPARK: Final = (4, 2)


def register(spark: SparkSession) -> None:
    """Register the format `rocketmq` with a session.

    Raises RmqdError if PySpark is too old for it, or if the Python that Spark starts here does not have rmqd.
    """
    check_versions()
    from pyspark.sql.utils import is_remote

    from rmqd.spark.format import RocketMQSource

    if not is_remote() and str(spark.sparkContext.master).startswith("local"):
        check_python(spark.sparkContext.pythonExec)
    if not _finds_it(spark, RocketMQSource.name()):
        spark.dataSource.register(RocketMQSource)


def lag(progress: Mapping[str, Any] | None) -> QueryLag | None:
    """How many messages a streaming query has not read, by queue and in all: `rmqd.spark.lag(query.lastProgress)`.

    None before the query's first batch, and right after a restart, when Spark does not know yet where the queues end.
    """
    from rmqd.spark.source.query_lag import lag_of

    return lag_of(progress)


def _finds_it(spark: SparkSession, name: str) -> bool:
    """Whether a session has a format already, by itself mostly: Spark would warn that another one replaces it."""
    from pyspark.sql.utils import is_remote

    return not is_remote() and bool(spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(name))


def check_versions() -> None:
    """Raise RmqdError, with what to install, where what the source needs is missing or too old."""
    try:
        import pyarrow  # type: ignore[import-untyped]  # noqa: F401
        import pyspark
    except ImportError as error:
        raise RmqdError(f"{error.name} is not installed: pip install 'rmqd[spark]'") from error
    version = str(pyspark.__version__)
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < LEAST_PYSPARK:
        raise RmqdError(
            f"rmqd's source for Spark needs PySpark 4.2 or later, and {version} is installed here: before 4.2 a Python "
            "source cannot limit what a batch reads. pip install -U 'rmqd[spark]'"
        )


def check_python(executable: str) -> None:
    """Raise RmqdError where a Python that Spark is to start does not have rmqd: Spark would only say "crashed"."""
    path = shutil.which(executable)
    if path is None or os.path.abspath(path) == sys.executable:  # Spark reports a Python that does not exist
        return
    tried = subprocess.run([path, "-c", "import pyarrow, rmqd.spark"], stderr=subprocess.PIPE, text=True, check=False)
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or ["it failed"])[-1]
        raise RmqdError(
            f"Spark's Python processes are started by {path}, and there: {reason}. Call rmqd.spark.prepare.prepare() "
            f"before the session is made, or set PYSPARK_PYTHON, such as to {sys.executable}"
        )
