"""The Spark session of a group: one for each driver process, with the properties that every group needs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from rmqd.config.model.spark_model import SparkConfig
from rmqd.spark import check_versions, register
from rmqd.spark.prepare import prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqd.spark.session.group_spec import GroupSpec


STOP_SECONDS: Final = 10
# defaults that a group may change
DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",  # would need a port for each group; the daemon's page and metrics show more
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    # how long stopping a query waits for it; without, a hanging task would delay the end for good
    "spark.sql.streaming.stopTimeout": f"{STOP_SECONDS}s",
}
# a driver in the same process as its executors need not be reachable from other machines
LOCAL_DEFAULTS: Final = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
# a second copy of a task would handle messages twice; the configuration rejects other values
FIXED: Final = {"spark.speculation": "false"}


def session_conf(spec: GroupSpec) -> dict[str, str]:
    """Return the properties of a group's session, for any master."""
    config = spec.settings.spark or SparkConfig()
    own = {name: _text(value) for name, value in config.conf.items()}
    return {"spark.app.name": f"rmqd {spec.name}", **DEFAULTS, **own, **FIXED}


def build_session(spec: GroupSpec) -> SparkSession:
    """Start Spark, or use what spark-submit has started. Raises RmqdError if software is missing or too old."""
    check_versions()
    properties = session_conf(spec)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit sets the driver and the master
        prepare()
        master = (spec.settings.spark or SparkConfig()).master
        properties = {**(LOCAL_DEFAULTS if master.startswith("local") else {}), **properties, "spark.master": master}
    from pyspark.sql import SparkSession

    session = SparkSession.builder.config(map={**properties}).getOrCreate()
    register(session)
    return session


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
