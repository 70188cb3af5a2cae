"""A real Apache RocketMQ on 127.0.0.1: started, broken on request, asked and filled, for tests and benchmarks.

`rmqd broker` can stand in its place, so that the same tests say whether it behaves as the real one does.

Nothing here uses rmqd's own protocol code: what checks a client must not share its mistakes.
`python -m tests.rocketmq --help` is the same for people.
"""

from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.errors import ClusterError, NotEmbeddedError, RocketMqUnavailable
from tests.rocketmq.spec import ClusterSpec

__all__ = ["ClusterError", "ClusterSpec", "NotEmbeddedError", "RealCluster", "RocketMqUnavailable"]
