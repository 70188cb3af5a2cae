"""`rmqd broker` as a process of its own, for peers that are processes too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rocketmq import RealCluster
from tests.rocketmq.release import EMBEDDED
from tests.rocketmq.spec import ClusterSpec

SHORT_DELAYS = " ".join(["1s"] * 18)


@pytest.fixture(scope="module")
def embedded() -> Iterator[RealCluster]:
    """One for the module, whose 18 delay levels are all of one second."""
    with RealCluster.start(ClusterSpec(version=EMBEDDED, settings={"messageDelayLevel": SHORT_DELAYS})) as cluster:
        yield cluster
