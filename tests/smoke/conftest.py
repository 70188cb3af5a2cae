"""One start of RocketMQ 5.5.0 for all tests here: a smoke test for each guarantee, beside Java and mqadmin.

Other daily tests have the embedded broker. RMQD_TEST_ROCKETMQ can name another release here too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rocketmq import ClusterSpec, RealCluster, release
from tests.rocketmq.fixtures import OF_KINDS, mend


@pytest.fixture(scope="package")
def rocketmq() -> Iterator[RealCluster]:
    """Its delay levels are all of one second, and it has lite topics."""
    version = release.asked_for() or release.DEFAULT
    with RealCluster.start(ClusterSpec(version=version, settings=OF_KINDS)) as cluster:
        yield cluster


@pytest.fixture
def rocketmq_short_delays(rocketmq: RealCluster) -> RealCluster:
    """The same one."""
    return rocketmq


@pytest.fixture
def rocketmq_of_kinds(rocketmq: RealCluster) -> RealCluster:
    """The same one."""
    return rocketmq


@pytest.fixture
def rocketmq_faulty(rocketmq: RealCluster) -> Iterator[RealCluster]:
    """The same one, which a test may kill; mended before the next test sees it."""
    yield rocketmq
    mend(rocketmq)


@pytest.fixture(params=["on the broker", "pushed"])
def way(request: pytest.FixtureRequest, rocketmq: RealCluster) -> Iterator[str]:
    """How the broker resets: 4.x can only push."""
    way: str = request.param
    if rocketmq.spec.version.startswith("4"):
        if way != "pushed":
            pytest.skip("RocketMQ 4 pushes resets to the members")
        yield way
        return
    rocketmq.set_broker(useServerSideResetOffset=str(way != "pushed").lower())
    yield way
    rocketmq.set_broker(useServerSideResetOffset="true")
