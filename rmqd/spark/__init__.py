"""RocketMQ as a data source of PySpark: call `register(spark)`, then `spark.read.format("rocketmq")`.

This package needs the extra `rmqd[spark]`. Spark pickles readers and writers and sends them from the driver to the
executors, so readers and writers contain only options. Each process opens its own connections, in
`session.spark_cluster` and `source.range_fetch`. Modules that say "No I/O" import neither pyspark nor pyarrow.

The subpackages `source` and `sink` implement the format. For a group with `engine: spark`, `engine` runs on the driver,
and `handlers` or `pipelines` run on the executors.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rmqd.errors import RmqdError, install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqd.spark.source.source_progress import QueryLag

MIN_PYSPARK: Final = (4, 2)


def register(spark: SparkSession) -> None:
    """Register the format `rocketmq` with a session.

    Raises RmqdError if PySpark is too old, or if a local session would start a Python that cannot import rmqd.
    """
    check_versions()
    from pyspark.sql.utils import is_remote

    from rmqd.spark.source.source_format import RocketMQSource

    if not is_remote():
        if str(spark.sparkContext.master).startswith("local"):
            check_python(spark.sparkContext.pythonExec)
        known = spark._jsparkSession.sessionState().dataSourceManager()
        if known.dataSourceExists(RocketMQSource.name()):  # registered by `pyspark_rmqd`; Spark warns if repeated
            return
    spark.dataSource.register(RocketMQSource)


def lag(progress: Mapping[str, Any] | None) -> QueryLag | None:
    """Return the number of messages that a streaming query has not read: `rmqd.spark.lag(query.lastProgress)`.

    Return None before the query's first batch, and after a restart until Spark knows the end offsets of the queues.
    """
    from rmqd.spark.source.source_progress import lag_of

    return lag_of(progress)


def check_versions() -> None:
    """Raise RmqdError with an install command if PySpark or PyArrow is missing, or if PySpark is too old."""
    try:
        import pyarrow  # type: ignore[import-untyped]  # noqa: F401
        import pyspark
    except ImportError as error:
        raise RmqdError(f"{error.name or error} is not installed; run {install_command('spark')}") from error
    version = str(pyspark.__version__)
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < MIN_PYSPARK:
        raise RmqdError(
            f"rmqd's source for Spark needs PySpark 4.2 or later, but {version} is installed: before 4.2 a Python "
            f"source cannot limit the size of a batch; run {install_command('spark')}"
        )


def check_python(executable: str) -> None:
    """Raise RmqdError if `executable`, Spark's Python, cannot import rmqd. Spark's own error would not say why."""
    path = shutil.which(executable)
    if path is None or os.path.abspath(path) == sys.executable:  # Spark reports a missing Python itself
        return
    tried = subprocess.run([path, "-c", "import pyarrow, rmqd.spark"], stderr=subprocess.PIPE, text=True, check=False)
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or ["it failed"])[-1]
        raise RmqdError(
            f"Spark starts its Python processes with {path}, and this fails there: {reason}; call "
            f"rmqd.spark.prepare.prepare() before creating the session, or set PYSPARK_PYTHON={sys.executable}"
        )
