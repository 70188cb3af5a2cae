"""Broadcasting together with a Java member: each member gets all messages, and failed messages are dropped."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rmqd.consumer.offsets.local_file_store import OffsetsFile
from tests.conformance import behaviour
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import ClusterError, RealCluster, ledger, offsets
from tests.rocketmq.peers import JavaPeer, PeerOptions, start_consumer
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until

pytestmark = pytest.mark.rocketmq

PERSIST_SECONDS = 1.0
JAVA_SECONDS = 60.0  # for a JVM on a busy machine


class Member:
    """An rmqd daemon with its own state_dir."""

    def __init__(self, cluster: RealCluster, topic: str, group: str, directory: Path, **settings: Any) -> None:
        self.ledger = directory / "ledger"
        self.file = OffsetsFile(directory / "state" / "offsets" / group)
        options = {"message_model": "broadcasting", "persist_consumer_offset_interval": f"{PERSIST_SECONDS:g}s"}
        options["consume_from_where"] = "first_offset"  # earlier messages are compared too
        directory.mkdir(parents=True, exist_ok=True)
        config = ledger_group(topic, self.ledger, directory.name, **(options | settings))
        self.rmqd = RmqdProcess(directory, cluster.nameserver, {group: config})

    def handled(self) -> Counter[str]:
        return Counter(entry.key for entry in ledger.read(self.ledger) if entry.event == ledger.FINISH)

    def stored(self) -> dict[int, int]:
        return {queue.queue_id: offset for queue, offset in self.file.load().items()}


def java_member(cluster: RealCluster, topic: str, group: str, directory: Path, **options: object) -> JavaPeer:
    """Start the official client with its own folder, where it stores its offsets."""
    directory.mkdir(parents=True, exist_ok=True)
    peer = PeerOptions(cluster.nameserver, topic, directory / "ledger", version=cluster.spec.version)
    return start_consumer(peer, group, model="BROADCASTING", **options)


def keys(path: Path) -> list[str]:
    return [entry.key for entry in ledger.read(path) if entry.event == ledger.FINISH]


def send(cluster: RealCluster, topic: str, numbers: Iterable[int]) -> set[str]:
    """Send a message for each number to the queues in turn, and return the keys."""
    with Producer(cluster.broker.address, topic) as producer:
        for number in numbers:
            producer.send(key=f"m{number}")
    return {f"m{number}" for number in numbers}


@behaviour(
    "broadcasting",
    "A failed message is dropped",
    java="a log line; no retry topic, no dead letters",
    rmqd="the same, and counted as dead_lettered",
    checked=(
        "a Java member and rmqd, with handlers that fail at the same messages; their ledgers, and the retry topic"
    ),
)
def test_failures_are_dropped(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    member = Member(rocketmq, topic, group, tmp_path / "rmqd", handler_options={"fail_every": 3})
    with java_member(rocketmq, topic, group, tmp_path / "java", fail_every=3), member.rmqd as rmqd:
        rmqd.wait_ready()
        sent = send(rocketmq, topic, range(120))
        outcomes = [Counter[tuple[str, str]](), Counter[tuple[str, str]]()]

        def all_came() -> bool:
            for number, path in enumerate((member.ledger, tmp_path / "java" / "ledger")):
                ends = (entry for entry in ledger.read(path) if entry.event != ledger.START)
                outcomes[number] = Counter((entry.event, entry.key) for entry in ends)
            return all(outcome.total() >= len(sent) for outcome in outcomes)

        wait_until(all_came, "each has tried everything", JAVA_SECONDS)
        ends = {queue.queue_id: offset for queue, offset in offsets.stored(rocketmq, topic).items()}
        wait_until(lambda: member.stored() == ends, "dropped messages are committed")
        failed = rmqd.metric("rmqd_messages_handled_total", group=group, result="dead_lettered")
        assert len(rmqd.events("message.dropped")) >= 1
    ours, javas = outcomes
    assert ours == javas
    assert set(ours.values()) == {1}
    assert failed == sum(event == ledger.FAIL for event, _ in ours) > 20
    with contextlib.suppress(ClusterError):  # the topic does not exist
        assert sum(offsets.stored(rocketmq, f"%RETRY%{group}").values()) == 0
