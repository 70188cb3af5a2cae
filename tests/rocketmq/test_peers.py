"""The Java peers and the test producer write and send what the ledger needs."""

from __future__ import annotations

import time
from pathlib import Path

from tests.rocketmq import RealCluster, ledger
from tests.rocketmq.peers import PeerOptions, start_consumer, start_producer
from tests.rocketmq.producer import Producer


def test_java_consumer_writes_down_what_java_and_test_producer_sent(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Every message sent, one by one, in a batch or by Java, is begun and finished once, at its queue and offset."""
    sent = tmp_path / "sent"
    handled = tmp_path / "handled"
    stored: dict[str, tuple[int, int]] = {}
    with Producer(rocketmq.broker.address, topic) as producer:
        stored |= {f"one-{number}": producer.send(b"body", key=f"one-{number}") for number in range(20)}
        queue, first = producer.send_batch([f"batch-{number}" for number in range(30)], b"body")
        stored |= {f"batch-{number}": (queue, first + number) for number in range(30)}
    with start_producer(PeerOptions(rocketmq.nameserver, topic, sent), messages=50) as java:
        assert java.wait() == 0
    stored |= {entry.key: (entry.queue, entry.offset) for entry in ledger.read(sent)}

    with start_consumer(PeerOptions(rocketmq.nameserver, topic, handled), group, handle_millis=1) as consumer:
        deadline = time.monotonic() + 40
        while sum(entry.event == ledger.FINISH for entry in ledger.read(handled)) < 100:
            assert time.monotonic() < deadline, f"handled only {len(ledger.read(handled)) // 2} of 100"
            time.sleep(0.05)
        member = consumer.client_id
        assert consumer.stop() == 143  # the JVM's status after SIGTERM

    finished = [entry for entry in ledger.read(handled) if entry.event == ledger.FINISH]
    assert {entry.key: (entry.queue, entry.offset) for entry in finished} == stored
    assert len(finished) == 100
    assert {entry.member for entry in finished} == {member}
