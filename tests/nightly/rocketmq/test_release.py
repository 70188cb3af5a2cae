"""The selection of the RocketMQ version for the tests, and the error for an unknown version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rocketmq import ClusterSpec, NotEmbeddedError, RealCluster, RocketMqUnavailable, release, rpc
from tests.rocketmq.fetch import fetch, home


def test_the_environment_selects_the_version_of_every_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is 5.5.0. A cluster may override the version."""
    monkeypatch.delenv(release.ENVIRONMENT, raising=False)
    assert ClusterSpec().version == "5.5.0"
    monkeypatch.setenv(release.ENVIRONMENT, "4.9.7")

    assert ClusterSpec().version == "4.9.7"
    assert ClusterSpec(version="5.5.0").version == "5.5.0"


def test_a_daily_run_uses_the_embedded_broker_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """It then needs no Java."""
    monkeypatch.delenv(release.ENVIRONMENT, raising=False)
    monkeypatch.setattr(release, "_daily", True)
    assert (ClusterSpec().version, release.is_without_java()) == ("embedded", True)
    for version in ("5.5.0", "embedded"):
        monkeypatch.setenv(release.ENVIRONMENT, version)
        assert (ClusterSpec().version, release.is_without_java()) == (version, False)


def test_an_unknown_version_is_refused_with_the_known_versions() -> None:
    with pytest.raises(
        RocketMqUnavailable, match=r"no RocketMQ 4\.9\.8 is known here; accepted: 4\.9\.7, 5\.5\.0, embedded"
    ):
        fetch("4.9.8")


def test_releases_do_not_share_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for every folder of jars. The embedded broker uses the jars of the release that it emulates."""
    for value in ("", "/kept/here"):
        monkeypatch.setenv("RMQD_ROCKETMQ_HOME", value)
        of_java = [version for version in release.RELEASES if version != release.EMBEDDED]
        assert len({home(version) for version in of_java}) == len(of_java)
        assert home(release.EMBEDDED) == home(release.DEFAULT)


@pytest.mark.parametrize(
    "asked",
    [
        {"brokers": 2},
        {"slaves": True},
        {"controller": True},
        {"name_servers": 2},
        {"acl": True},
        {"tls": True},
        {"certificates": True},
    ],
)
def test_features_that_the_embedded_broker_lacks_are_refused(asked: dict[str, Any]) -> None:
    """Tests that need them are skipped with the reason."""
    with pytest.raises(
        NotEmbeddedError, match="has one name server and one broker, no proxy, no access control and no TLS"
    ):
        ClusterSpec(version=release.EMBEDDED, **asked).with_nodes()
    with pytest.raises(NotEmbeddedError, match="has no commit log"):
        ClusterSpec(version=release.EMBEDDED, settings={"mappedFileSizeCommitLog": "65536"}).with_nodes()


@pytest.mark.process
def test_the_embedded_name_server_and_broker_are_one_process(tmp_path: Path) -> None:
    """Killing one ends both, and restarting one starts both."""
    with RealCluster.start(ClusterSpec(version=release.EMBEDDED), tmp_path / "cluster") as cluster:
        cluster.create_topic("kept", 3)
        assert cluster.namesrv.pid == cluster.broker.pid
        cluster.kill("broker")
        assert [node.state for node in cluster.nodes] == ["dead", "dead"]

        cluster.restart("namesrv")

        assert rpc.write_queue_counts(cluster.nameserver, "kept") == [3]


def test_the_broker_has_the_requested_version(rocketmq: RealCluster) -> None:
    """The version is taken from its own report."""
    assert f"V{release.named(rocketmq.spec.version).java.replace('.', '_')}" in rocketmq.admin("clusterList")
