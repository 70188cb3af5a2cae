"""A real Apache RocketMQ on 127.0.0.1, which tests and benchmarks start, break, query and fill.

`rmqd broker` can replace it, so that the same tests show whether it behaves like the real one.

Nothing here uses rmqd's own protocol code, because the checks of a client must not share its mistakes.
`python -m tests.rocketmq --help` describes the command line.
"""

from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.errors import ClusterError, NotEmbeddedError, RocketMqUnavailable
from tests.rocketmq.spec import ClusterSpec

__all__ = ["ClusterError", "ClusterSpec", "NotEmbeddedError", "RealCluster", "RocketMqUnavailable"]
