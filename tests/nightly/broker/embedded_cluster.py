"""`rmqd broker` in a separate process, for clients that are processes too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rocketmq import RealCluster
from tests.rocketmq.release import EMBEDDED
from tests.rocketmq.spec import ClusterSpec

SHORT_DELAYS = " ".join(["1s"] * 18)


@pytest.fixture(scope="module")
def embedded() -> Iterator[RealCluster]:
    """A cluster for the module. All of its 18 delay levels are one second."""
    with RealCluster.start(ClusterSpec(version=EMBEDDED, settings={"messageDelayLevel": SHORT_DELAYS})) as cluster:
        yield cluster
