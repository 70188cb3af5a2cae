"""A daemon's configuration with a group on each engine: `archive` on Spark, `mailer` here, both of topic `orders`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_CONFIG: Final = """
nameserver: {nameserver}
state_dir: {folder}/state
http: {{listen: "127.0.0.1:0"}}
log: {{format: json}}
groups:
  archive:
    engine: spark
    spark:
      master: "local[2,4]"
      conf:
        spark.driver.memory: 512m
    subscriptions: {{orders: "*"}}
    consume_from_where: first_offset
    handler: {archive}
  mailer:
    subscriptions: {{orders: "*"}}
    consume_from_where: first_offset
    handler: {mailer}
"""


def write_config(path: Path, nameserver: str, handlers: Mapping[str, str]) -> None:
    """Write the file; its folder is the daemon's, too. `handlers` has a handler in YAML for each group."""
    path.write_text(_CONFIG.format(nameserver=nameserver, folder=path.parent, **handlers))
