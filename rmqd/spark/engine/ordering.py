"""From a configuration to the specification of one of its groups."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rmqd.config.model.root import RootConfig
from rmqd.config.model.spark import SparkConfig
from rmqd.errors import ConfigError
from rmqd.plugins.runnable import load_runnable
from rmqd.spark.group_order import GroupOrder
from rmqd.spark.handlers.group_options import check_spark_options


def order_of(path: Path | None, group: str = "", overrides: tuple[str, ...] = ()) -> GroupOrder:
    """Return the specification of the group of this name, or of the only one on Spark. Raises ConfigError."""
    config = load_runnable(path, overrides, groups=(group,) if group else ())
    on_spark = [name for name, settings in config.groups.items() if settings.engine == "spark"]
    name = group or (on_spark[0] if len(on_spark) == 1 else "")
    if name not in config.groups:
        known = ", ".join(on_spark) or "none"
        what = f"unknown group {group}" if group else "no group is chosen"
        raise ConfigError([f"{path}: {what}; expected one of the groups on Spark: {known}"])
    if name not in on_spark:
        raise ConfigError(
            [f"{path}: groups.{name}.engine: {config.groups[name].engine} does not run on Spark; expected spark"]
        )
    check_spark_options(name, config.groups[name])
    return GroupOrder(name, _placed(config, name), tuple(os.path.abspath(one) for one in sys.path))


def _placed(config: RootConfig, name: str) -> RootConfig:
    """Return the configuration of one group, with absolute folders."""
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
    """Return the absolute path of a local folder, and a URL unchanged, even without an authority: `file:/x`."""
    return place if ":/" in place else os.path.abspath(place)
