"""The command line of the embedded RocketMQ: name server and broker in one process of `rmqd broker`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.rocketmq.spec import ClusterSpec


def command(spec: ClusterSpec, directory: Path) -> list[str]:
    """Return the command that starts the cluster, whose directory keeps its messages across restarts.

    It has only the settings of the spec and the setting of recalls. Other settings that tests give a broker are about
    its JVM and its files.
    """
    namesrv, broker = spec.nodes
    given = {"brokerName": broker.broker_name, "recallMessageEnable": "true", **spec.settings}
    return [
        *(sys.executable, "-m", "rmqd", "broker"),
        *("--listen", namesrv.address, "--broker-port", str(broker.port), "--data-dir", str(directory / "data")),
        *(part for name, value in given.items() for part in ("--setting", f"{name}={value}")),
    ]
