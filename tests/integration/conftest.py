"""Fixtures of tests of whole groups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rocketmq import RealCluster


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
