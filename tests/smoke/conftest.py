"""One RocketMQ 5.5.0 for all tests here, which check each guarantee together with Java and mqadmin.

Other daily tests use the embedded broker. RMQD_TEST_ROCKETMQ can name another release here too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rocketmq import ClusterSpec, RealCluster, release
from tests.rocketmq.fixtures import OF_KINDS, mend


@pytest.fixture(scope="package")
def rocketmq() -> Iterator[RealCluster]:
    """Start a cluster with lite topics, whose delay levels are all one second."""
    version = release.asked_for() or release.DEFAULT
    with RealCluster.start(ClusterSpec(version=version, settings=OF_KINDS)) as cluster:
        yield cluster


@pytest.fixture
def rocketmq_short_delays(rocketmq: RealCluster) -> RealCluster:
    """Return the same cluster."""
    return rocketmq


@pytest.fixture
def rocketmq_of_kinds(rocketmq: RealCluster) -> RealCluster:
    """Return the same cluster."""
    return rocketmq


@pytest.fixture
def rocketmq_faulty(rocketmq: RealCluster) -> Iterator[RealCluster]:
    """Return the same cluster, which a test may kill, and repair it afterwards."""
    yield rocketmq
    mend(rocketmq)


@pytest.fixture(params=["on the broker", "pushed"])
def way(request: pytest.FixtureRequest, rocketmq: RealCluster) -> Iterator[str]:
    """Configure how the broker resets offsets: 4.x can only push resets to members."""
    way: str = request.param
    if rocketmq.spec.version.startswith("4"):
        if way != "pushed":
            pytest.skip("RocketMQ 4 pushes resets to the members")
        yield way
        return
    rocketmq.set_broker(useServerSideResetOffset=str(way != "pushed").lower())
    yield way
    rocketmq.set_broker(useServerSideResetOffset="true")
