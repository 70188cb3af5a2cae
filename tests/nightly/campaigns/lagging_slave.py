"""A slave that lags behind its master and sometimes serves alone. Its missing messages are on the master, not lost.

The slave is down while most messages are sent. When the master is killed the slave starts and serves readers, because
of `slaveReadEnable`. It stops before the master is back, so that it never catches up.
"""

from __future__ import annotations

import time
from typing import Final

from tests.rocketmq import ClusterError, RealCluster, rpc
from tests.rocketmq.node import Node
from tests.rocketmq.spec import ClusterSpec
from tests.waiting import wait_until

GET_ALL_TOPIC_CONFIG: Final = 21
COPIED_SECONDS: Final = 90.0  # the slave may have been down


def with_slave() -> ClusterSpec:
    """A master with a readable slave."""
    return ClusterSpec(slaves=True, heap="384m", settings={"slaveReadEnable": "true"})


class LaggingSlave:
    """The slave of a cluster's first master."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster

    @property
    def node(self) -> Node:
        """The slave, running or not. Raises ClusterError if the cluster has none."""
        return self._cluster.node("slave")

    @property
    def is_there(self) -> bool:
        """Whether the cluster has a slave."""
        return self._cluster.spec.slaves

    def leave_behind(self, topic: str, queues: int) -> None:
        """Stop the slave once it has copied the topic's current messages."""
        ends = self._ends(self._cluster.broker, topic, queues)
        wait_until(lambda: self._ends(self.node, topic, queues) == ends, "the slave has copied all", COPIED_SECONDS)
        self._cluster.down([self.node], now=True)

    def come_or_go(self) -> None:
        """Start the slave if it is down, or kill it: it falls behind while it is down, and then catches up."""
        if self.node.state == "running":
            self._cluster.down([self.node], now=True)
        else:
            self._cluster.up([self.node])

    def serve_alone(self, seconds: float) -> None:
        """Kill the master, and let the slave serve alone for this time."""
        master = self._cluster.broker
        self._cluster.down([master], now=True)
        self._cluster.up([self.node])
        time.sleep(seconds)
        self._cluster.down([self.node], now=True)
        self._cluster.up([master])

    @staticmethod
    def _ends(node: Node, topic: str, queues: int) -> list[int]:
        try:
            if f'"{topic}"'.encode() not in rpc.call(node.address, GET_ALL_TOPIC_CONFIG).body:
                return []
            return [
                int(rpc.call(node.address, rpc.GET_MAX_OFFSET, {"topic": topic, "queueId": number}).fields["offset"])
                for number in range(queues)
            ]
        except ClusterError:
            return []
