"""One place says which RocketMQ the tests run, and what it can be is told to who asks for another."""

from __future__ import annotations

import pytest

from tests.rocketmq import ClusterSpec, RealCluster, RocketMqUnavailable, release
from tests.rocketmq.fetch import fetch, home


def test_the_environment_names_the_version_of_every_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, 5.5.0; a cluster may name its own."""
    monkeypatch.delenv(release.ENVIRONMENT, raising=False)
    assert ClusterSpec().version == "5.5.0"
    monkeypatch.setenv(release.ENVIRONMENT, "4.9.7")

    assert ClusterSpec().version == "4.9.7"
    assert ClusterSpec(version="5.5.0").version == "5.5.0"


def test_an_unknown_version_is_refused_by_name() -> None:
    """With what is accepted."""
    with pytest.raises(RocketMqUnavailable, match=r"no RocketMQ 4\.9\.8 is known here; accepted: 4\.9\.7, 5\.5\.0"):
        fetch("4.9.8")


def test_releases_do_not_share_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the jars are kept."""
    for value in ("", "/kept/here"):
        monkeypatch.setenv("RMQD_ROCKETMQ_HOME", value)
        assert len({home(version) for version in release.RELEASES}) == len(release.RELEASES)


def test_the_broker_is_of_the_version_that_was_asked_for(rocketmq: RealCluster) -> None:
    """As it says itself."""
    assert f"V{rocketmq.spec.version.replace('.', '_')}" in rocketmq.admin("clusterList")
