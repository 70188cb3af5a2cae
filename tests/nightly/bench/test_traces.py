"""The number of handled messages in a message trace, read from an embedded broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import traces
from rmqd.wire.trace import ContextCode, sub_after_record, sub_before_record
from tests.rocketmq import ClusterSpec, RealCluster, release
from tests.rocketmq.producer import Producer

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealCluster]:
    """A cluster with a trace topic of one queue. Clients cannot create the system trace topic."""
    monkeypatch.setattr(traces, "TOPIC", "traces")
    with RealCluster.start(ClusterSpec(version=release.EMBEDDED), tmp_path / "rocketmq") as cluster:
        cluster.create_topic(traces.TOPIC, 1)
        yield cluster


def trace(group: str, *ids: str) -> bytes:
    """Return the records of handled messages, and of one unhandled message."""
    before = [
        sub_before_record(timestamp_ms=1, region="r", group=group, request_id="q", msg_id=one, retry_times=0, keys="k")
        for one in (*ids, "never-done")
    ]
    after = [
        sub_after_record(
            request_id="q", msg_id=one, cost_ms=1, success=True, keys="k", code=ContextCode.SUCCESS, timestamp_ms=2,
            group=group,
        )
        for one in ids
    ]  # fmt: skip
    return "".join([*before, *after]).encode()


def test_messages_that_a_group_handled_since_an_offset_are_counted(cluster: RealCluster) -> None:
    """Over several pulls; without other groups, unfinished messages and earlier records."""
    with Producer(cluster.broker.address, traces.TOPIC, 1) as producer:
        producer.send(trace("mailer", "early"))
        since = traces.stored(cluster)
        for number in range(40):
            producer.send(trace("mailer", f"a{number}", f"b{number}"))
            producer.send(trace("audit", f"c{number}"))
    assert traces.handled(cluster, "mailer", since) == 80
    assert traces.handled(cluster, "audit", since) == 40
