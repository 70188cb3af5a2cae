"""A slave that is behind its master, and alone now and then: what it does not have is on the master, and is not lost.

It is down while most of the messages are sent. When the master is killed it comes up, and answers whoever reads with
`slaveReadEnable`; it goes down again before the master is back, so that it never catches up.
"""

from __future__ import annotations

import time
from typing import Final

from tests.rocketmq import ClusterError, RealCluster, rpc
from tests.rocketmq.node import Node
from tests.rocketmq.spec import ClusterSpec
from tests.waiting import wait_until

GET_ALL_TOPIC_CONFIG: Final = 21
COPIED_SECONDS: Final = 90.0  # a slave may have been away


def with_slave() -> ClusterSpec:
    """A master, and a slave that may be read."""
    return ClusterSpec(slaves=True, heap="384m", settings={"slaveReadEnable": "true"})


class LaggingSlave:
    """The slave of a cluster's first master."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster

    @property
    def node(self) -> Node:
        """It, whether it runs or not. Raises ClusterError where the cluster has none."""
        return self._cluster.node("slave")

    @property
    def is_there(self) -> bool:
        """Whether the cluster has one."""
        return self._cluster.spec.slaves

    def leave_behind(self, topic: str, queues: int) -> None:
        """Go down, once it has all that the topic has by now."""
        ends = self._ends(self._cluster.broker, topic, queues)
        wait_until(lambda: self._ends(self.node, topic, queues) == ends, "the slave has copied all", COPIED_SECONDS)
        self._cluster.down([self.node], now=True)

    def come_or_go(self) -> None:
        """Be there if it was not, and else go down at once: while it is away it falls behind, and then catches up."""
        if self.node.state == "running":
            self._cluster.down([self.node], now=True)
        else:
            self._cluster.up([self.node])

    def serve_alone(self, seconds: float) -> None:
        """Be there without the master for so long, which is killed with -9."""
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
