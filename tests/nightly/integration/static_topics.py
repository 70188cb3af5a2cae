"""Static topics on two brokers, filled by Java and moved by mqadmin."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.rocketmq import RealCluster
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.peers import PeerOptions, start_producer

QUEUES: Final = 4
LOGICAL: Final = "__syslo__global__"
EVERYWHERE: Final = ("-c", "DefaultCluster")


def static_topic(cluster: RealCluster, test: str) -> str:
    """A topic of four logical queues on both brokers."""
    topic = fresh_name(test, "topic")
    cluster.admin("updateStaticTopic", "-t", topic, "-qn", str(QUEUES), "-c", "DefaultCluster")
    return topic


def send(cluster: RealCluster, topic: str, folder: Path, first: int, end: int) -> None:
    """Send with the Java producer, which supports logical queues."""
    peer = PeerOptions(cluster.nameserver, topic, folder / f"sent-{first}")
    with start_producer(peer, end, first=first) as producer:
        assert producer.wait() == 0


def remap(cluster: RealCluster, topic: str, *target: str) -> None:
    """Move the topic's queues: `-b broker-a`, or `-c DefaultCluster` for all brokers."""
    cluster.admin("remappingStaticTopic", "-t", topic, *target)
