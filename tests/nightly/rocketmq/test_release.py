"""One place says which RocketMQ the tests run, and what it can be is told to who asks for another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rocketmq import ClusterSpec, NotEmbeddedError, RealCluster, RocketMqUnavailable, release, rpc
from tests.rocketmq.fetch import fetch, home


def test_the_environment_names_the_version_of_every_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, 5.5.0; a cluster may name its own."""
    monkeypatch.delenv(release.ENVIRONMENT, raising=False)
    assert ClusterSpec().version == "5.5.0"
    monkeypatch.setenv(release.ENVIRONMENT, "4.9.7")

    assert ClusterSpec().version == "4.9.7"
    assert ClusterSpec(version="5.5.0").version == "5.5.0"


def test_a_daily_run_has_the_embedded_broker_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes without Java then."""
    monkeypatch.delenv(release.ENVIRONMENT, raising=False)
    monkeypatch.setattr(release, "_daily", True)
    assert (ClusterSpec().version, release.is_without_java()) == ("embedded", True)
    for version in ("5.5.0", "embedded"):
        monkeypatch.setenv(release.ENVIRONMENT, version)
        assert (ClusterSpec().version, release.is_without_java()) == (version, False)


def test_an_unknown_version_is_refused_by_name() -> None:
    """With what is accepted."""
    with pytest.raises(
        RocketMqUnavailable, match=r"no RocketMQ 4\.9\.8 is known here; accepted: 4\.9\.7, 5\.5\.0, embedded"
    ):
        fetch("4.9.8")


def test_releases_do_not_share_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the jars are kept; the embedded broker has none, and uses those of the release that it stands for."""
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
def test_what_the_embedded_broker_cannot_be_is_refused(asked: dict[str, Any]) -> None:
    """Such a test is skipped, with the reason."""
    with pytest.raises(
        NotEmbeddedError, match="has one name server and one broker, no proxy, no access control and no TLS"
    ):
        ClusterSpec(version=release.EMBEDDED, **asked).with_nodes()
    with pytest.raises(NotEmbeddedError, match="has no commit log"):
        ClusterSpec(version=release.EMBEDDED, settings={"mappedFileSizeCommitLog": "65536"}).with_nodes()


@pytest.mark.process
def test_name_server_and_broker_are_one_process_where_embedded(tmp_path: Path) -> None:
    """Whichever of both is killed."""
    with RealCluster.start(ClusterSpec(version=release.EMBEDDED), tmp_path / "cluster") as cluster:
        cluster.create_topic("kept", 3)
        assert cluster.namesrv.pid == cluster.broker.pid
        cluster.kill("broker")
        assert [node.state for node in cluster.nodes] == ["dead", "dead"]

        cluster.restart("namesrv")

        assert rpc.write_queue_counts(cluster.nameserver, "kept") == [3]


def test_the_broker_is_of_the_version_that_was_asked_for(rocketmq: RealCluster) -> None:
    """As it says itself."""
    assert f"V{release.named(rocketmq.spec.version).java.replace('.', '_')}" in rocketmq.admin("clusterList")
