"""The Java programs and the test producer, and the ledgers that they write."""

from __future__ import annotations

import zlib
from pathlib import Path

from tests.rocketmq import RealCluster, ledger
from tests.rocketmq.peers import PeerOptions, start_consumer, start_producer
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until


def test_the_java_consumer_records_the_messages_of_both_producers(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Every message is finished once, with its queue and offset: single messages, batches, and messages of Java."""
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
        tail = ledger.Tail()
        wait_until(lambda: len(tail.finished([handled])) >= 100, "all are handled", 40)
        member = consumer.client_id
        assert consumer.stop() == 143  # the JVM's exit status after SIGTERM

    finished = [entry for entry in ledger.read(handled) if entry.event == ledger.FINISH]
    assert {entry.key: (entry.queue, entry.offset) for entry in finished} == stored
    assert len(finished) == 100
    assert {entry.member for entry in finished} == {member}


def test_the_orderly_java_consumer_keeps_the_order_of_each_sharding_key(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Each key has one queue. Its messages start in order, and a failed message is retried before the next one."""
    sent = tmp_path / "sent"
    handled = tmp_path / "handled"
    for first, messages in (0, 30), (30, 60):
        peer = PeerOptions(rocketmq.nameserver, topic, sent)
        with start_producer(peer, messages, first=first, sharding_keys=6) as java:
            assert java.wait() == 0
    queue_of = {ledger.sharding(entry.key)[0]: entry.queue for entry in ledger.read(sent)}
    keys = [entry.key for entry in ledger.read(sent)]
    assert keys == [f"s{number % 6}.{number // 6}" for number in range(60)]
    assert all(queue_of[ledger.sharding(entry.key)[0]] == entry.queue for entry in ledger.read(sent))
    failing = {key for key in keys if zlib.crc32(key.encode()) % 7 == 6}

    with start_consumer(
        PeerOptions(rocketmq.nameserver, topic, handled), group, orderly=True, batch=4, handle_millis=1, fail_every=7
    ):
        wait_until(lambda: ledger.Tail().finished([handled]) == set(keys), "all is finished", 40)

    entries = ledger.read(handled)
    failed = {entry.key for entry in entries if entry.event == ledger.FAIL}
    assert failed
    assert failed <= failing  # attempts count per batch: two such messages of a batch fail only once
    for name in queue_of:
        of_name = [entry for entry in entries if ledger.sharding(entry.key)[0] == name]
        starts = [ledger.sharding(entry.key)[1] for entry in of_name if entry.event == ledger.START]
        assert list(dict.fromkeys(starts)) == list(range(10))
        fails = [(at, entry) for at, entry in enumerate(of_name) if entry.event == ledger.FAIL]
        for at, entry in fails:
            again = next(later for later in of_name[at + 1 :] if later.event == ledger.START and later.key == entry.key)
            assert again.reconsume_times == entry.reconsume_times + 1
