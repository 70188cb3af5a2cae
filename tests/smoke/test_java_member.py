"""A Java member in rmqd's group: it acquires and releases queues, and no message is handled twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster, ledger, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.peers import PeerOptions, start_consumer
from tests.waiting import wait_until

pytestmark = pytest.mark.rocketmq

PATIENCE_SECONDS = 90
FAIL_EVERY = 20  # every 20th message fails once


def finished(path: Path) -> Counter[str]:
    """Return how often each key was handled successfully."""
    return Counter(entry.key for entry in ledger.read(path) if entry.event == ledger.FINISH)


def test_in_a_namespace_rmqd_and_java_share_queues_and_retries(
    rocketmq: RealCluster, request: pytest.FixtureRequest, group: str, tmp_path: Path
) -> None:
    """Both clients use names without the namespace, and brokers use names with it. No message is handled twice."""
    namespace, topic = fresh_name("shop", "ns"), fresh_name(request.node.name, "topic")
    stored_topic, stored_group = f"{namespace}%{topic}", f"{namespace}%{group}"
    rocketmq.create_topic(stored_topic)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    settings = ledger_group(topic, ours, "rmqd", handler_options={"fail_every": FAIL_EVERY})
    client = {"namespace": namespace}
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: settings}, client=client) as rmqd:
        rmqd.wait_ready()

        def owned() -> int:
            return sum(queue["topic"] == topic and not queue["is_retry"] for queue in rmqd.queues(group))

        wait_until(lambda: owned() == 8, "rmqd has all queues")
        peer = PeerOptions(rocketmq.nameserver, topic, theirs)
        with start_consumer(peer, group, namespace=namespace, fail_every=FAIL_EVERY) as java:
            wait_until(lambda: owned() == 4, "Java has half of the queues", PATIENCE_SECONDS)
            assert len(offsets.members(rocketmq, stored_group)) == 2
            check_shared_load(rocketmq, stored_topic, ours, theirs)
            assert {event["event"] for event in rmqd.events() if event["level"] == "error"} == {"handler.failed"}
            assert java.stop() in (0, 143)
        wait_until(lambda: owned() == 8, "rmqd has all queues again", PATIENCE_SECONDS)
        assert rmqd.terminate()[0] == 0
    assert offsets.lag(rocketmq, stored_group, stored_topic) == 0


def check_shared_load(cluster: RealCluster, topic: str, ours: Path, theirs: Path) -> None:
    """Check that both members handle messages, and that each sent message is handled successfully once."""
    with Load(cluster, topic, 100_000, per_second=100) as load:
        wait_until(
            lambda: min(len(finished(ours)), len(finished(theirs))) > 100, "both handle what comes", PATIENCE_SECONDS
        )
    wait_until(
        lambda: finished(ours).keys() | finished(theirs).keys() >= load.sent.keys(),
        "all that was sent is handled, what failed at its next attempt",
        PATIENCE_SECONDS,
    )
    times = finished(ours) + finished(theirs)
    assert {key: count for key, count in times.items() if count > 1} == {}
    for path in (ours, theirs):
        assert any(entry.event == ledger.FAIL for entry in ledger.read(path)), "messages failed at both members"
