"""The specification of a group on Spark, for its driver and its executors; and the driver's only Spark session."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmqd.client.client_options import ClientOptions
from rmqd.config.model.group_model import GroupConfig
from rmqd.config.model.root_model import RootConfig
from rmqd.config.model.spark_model import SparkConfig
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.errors import ConfigError
from rmqd.plugins.model_options import consumer_options, load_runnable
from rmqd.spark import check_versions, register
from rmqd.spark.prepare import prepare
from rmqd.spark.session.spark_access import ClientAccess, option_text
from rmqd.spark.source.source_options import check_spark_options
from rmqd.wire.topics import wrap_namespace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_STOP_SECONDS: Final = 10
# default properties of the session, which a group's spark.conf may override
DEFAULT_CONF: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",  # the UI needs a port for each group, and the daemon's page and metrics show more
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    # how long Spark waits for a query to stop; without this limit, a hanging task would block the stop forever
    "spark.sql.streaming.stopTimeout": f"{TASK_STOP_SECONDS}s",
}
# with master local, executors run in the driver's JVM, so the driver need not be reachable from other machines
LOCAL_DEFAULT_CONF: Final = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
# speculation copies a slow task, so messages would be handled twice; the configuration check rejects "true" too
FIXED_CONF: Final = {"spark.speculation": "false"}


@dataclass(frozen=True, slots=True)
class GroupSpec:
    name: str
    config: RootConfig
    """The validated configuration. Only the group with this `name` is used."""
    import_path: tuple[str, ...] = ()
    """The sys.path of the process that loaded the group. Driver and executors add it to find the same plugins."""

    @property
    def settings(self) -> GroupConfig:
        return self.config.groups[self.name]

    @property
    def spark(self) -> SparkConfig:
        return self.settings.spark or SparkConfig()

    @property
    def client_options(self) -> ClientOptions:
        return self.config.cluster_of(self.name).client_options(self.config.state_dir)

    @property
    def access(self) -> ClientAccess:
        return ClientAccess(self.client_options)

    @property
    def options(self) -> ConsumerOptions:
        """The options of the engine. Names of the topics and the group include the namespace, if any."""
        return consumer_options(self.config, self.name)

    @property
    def group(self) -> str:
        """The group's name at the brokers, including the namespace, if any."""
        return wrap_namespace(self.name, self.client_options.namespace)

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the subscribed topics at the brokers, including the namespace, if any."""
        namespace = self.client_options.namespace
        return tuple(wrap_namespace(topic, namespace) for topic in self.settings.subscriptions)


def load_spec(path: Path | None, group: str, overrides: tuple[str, ...], *, any_engine: bool = False) -> GroupSpec:
    """Return the specification of `group`; if `group` is empty, of the only group on Spark. Raises ConfigError.

    With `any_engine`, a named group may have another engine than Spark.
    """
    config = load_runnable(path, overrides, groups=(group,) if group else ())
    on_spark = [name for name, settings in config.groups.items() if settings.engine == "spark"]
    name = group or (on_spark[0] if len(on_spark) == 1 else "")
    if name not in config.groups:
        known = ", ".join(on_spark) or "none"
        what = f"unknown group {group}" if group else "no group is chosen"
        raise ConfigError([f"{path}: {what}; expected one of the groups on Spark: {known}"])
    if name in on_spark:
        check_spark_options(name, config.groups[name])
    elif not any_engine:
        raise ConfigError(
            [f"{path}: groups.{name}.engine: {config.groups[name].engine} does not run on Spark; expected spark"]
        )
    return GroupSpec(name, _placed(config, name), tuple(os.path.abspath(one) for one in sys.path))


def _placed(config: RootConfig, name: str) -> RootConfig:
    """Return the configuration with only one group, and with absolute paths of local folders."""
    settings = config.groups[name]
    spark = settings.spark or SparkConfig()
    if spark.checkpoint:
        spark = spark.model_copy(update={"checkpoint": _from_here(spark.checkpoint)})
    sink = settings.sink
    if sink is not None:
        places = {key: getattr(sink, key) for key in ("path", "staging")}
        sink = sink.model_copy(update={key: _from_here(one) for key, one in places.items() if one})
    settings = settings.model_copy(update={"spark": spark, "sink": sink})
    placed = config.of_group(name, settings)
    return placed.model_copy(update={"state_dir": os.path.abspath(config.state_dir)})


def _from_here(place: str) -> str:
    """Return the absolute path of a local folder. Return a URL unchanged, even if it has no host: `file:/x`."""
    return place if ":/" in place else os.path.abspath(place)


def session_conf(spec: GroupSpec) -> dict[str, str]:
    own = {name: option_text(value) for name, value in spec.spark.conf.items()}
    return {"spark.app.name": f"rmqd {spec.name}", **DEFAULT_CONF, **own, **FIXED_CONF}


def build_session(spec: GroupSpec) -> SparkSession:
    """Start Spark, or use spark-submit's JVM. Raises RmqdError if Java or PySpark is missing or too old."""
    check_versions()
    properties = session_conf(spec)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit sets this variable, and sets the driver and the master
        prepare()
        master = spec.spark.master
        properties = {
            **(LOCAL_DEFAULT_CONF if master.startswith("local") else {}),
            **properties,
            "spark.master": master,
        }
    from pyspark.sql import SparkSession

    session = SparkSession.builder.config(map={**properties}).getOrCreate()
    register(session)
    return session
