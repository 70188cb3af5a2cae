"""Delta Lake for the tests' session, if it has a release for the installed Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from rmqd.spark.pipelines.table_sinks import DELTA_CATALOG, DELTA_EXTENSION
from tests.rocketmq.fetch import home
from tests.servers.jars import copy_jars

POM: Final = Path(__file__).with_name("delta.xml")
RELEASE: Final = "4.4.0"
SPARK: Final = "4.2"
"""The last Spark for this release: with 4.3 its classes miss methods of Spark."""


def is_made_for_this_spark() -> bool:
    """Whether tests with the real library can run."""
    import pyspark

    return ".".join(pyspark.__version__.split(".")[:2]) == SPARK


def delta_conf() -> dict[str, str]:
    """Return a session's properties with Delta Lake, whose jars are fetched once. Empty if it is not for this Spark."""
    if not is_made_for_this_spark():
        return {}
    jars = copy_jars(POM, home().parent / f"delta-lake-{RELEASE}", f"Delta Lake {RELEASE}")
    return {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        "spark.databricks.delta.snapshotPartitions": "1",  # 50 tasks for each query of a small table would take seconds
    }


def need_delta_lake() -> None:
    """Skip a test module with a message if no release is made for the installed Spark. This includes CI."""
    if not is_made_for_this_spark():
        import pyspark

        pytest.skip(
            f"NOT TESTED WITH DELTA LAKE: {RELEASE} is made for Spark {SPARK}, and this is {pyspark.__version__}; "
            f"pip install 'pyspark=={SPARK}.*' in an environment of its own",
            allow_module_level=True,
        )
