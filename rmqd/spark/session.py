"""The Spark session of a group: one for each driver process, with properties that a group needs whatever it says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from rmqd.config.model.spark import SparkConfig
from rmqd.spark import check_versions, register
from rmqd.spark.prepare import prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqd.spark.group_order import GroupOrder

STOP_SECONDS: Final = 10
# What a group may change.
DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",  # a port for each group, and the daemon's page and metrics tell more
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    # what ends a query waits so long for it: without, a task that hangs would hold up the end for good
    "spark.sql.streaming.stopTimeout": f"{STOP_SECONDS}s",
}
# A driver beside its executors in one process need not be reached from elsewhere.
LOCAL_DEFAULTS: Final = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
# A second copy of a task would handle messages twice. The configuration refuses another value.
FIXED: Final = {"spark.speculation": "false"}


def session_conf(order: GroupOrder) -> dict[str, str]:
    """The properties of a group's session, wherever its master is."""
    config = order.settings.spark or SparkConfig()
    own = {name: _text(value) for name, value in config.conf.items()}
    return {"spark.app.name": f"rmqd {order.name}", **DEFAULTS, **own, **FIXED}


def build_session(order: GroupOrder) -> SparkSession:
    """Start Spark, or take what spark-submit has started. Raises RmqdError for what is missing or too old here."""
    check_versions()
    properties = session_conf(order)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit says where its driver runs, and on which master
        prepare()
        master = (order.settings.spark or SparkConfig()).master
        properties = {**(LOCAL_DEFAULTS if master.startswith("local") else {}), **properties, "spark.master": master}
    from pyspark.sql import SparkSession

    session = SparkSession.builder.config(map={**properties}).getOrCreate()
    register(session)
    return session


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
