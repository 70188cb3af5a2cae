"""The official Java client and the Go client on the embedded broker: each message once, orderly queues in order."""

from __future__ import annotations

import asyncio
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rmqd.wire.bodies.group_bodies import ConsumerRunningInfo
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.receipt_handle import ANY_QUEUE_ID
from tests.conformance.attempts import Attempt
from tests.consumer.members import member
from tests.integration.consuming import dead_letter_count
from tests.nightly.broker.embedded_cluster import embedded  # noqa: F401 - a fixture
from tests.nightly.rocketmq import go_peers
from tests.rocketmq import RealCluster, ledger, rpc
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.peers import Peer, PeerOptions, start_consumer, start_lite_pull, start_producer, start_scripted
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually, wait_until

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(420)]  # the Go program is built on first use

MESSAGES = 60
FAIL_EVERY = 7
SHARDING_KEYS = 6
GET_CONSUMER_RUNNING_INFO = 307
needs_go = pytest.mark.skipif(
    not go_peers.available() and not os.environ.get("CI"), reason="no Go on PATH (Debian: apt-get install golang-go)"
)


@pytest.fixture
def topic(request: pytest.FixtureRequest, embedded: RealCluster) -> str:  # noqa: F811
    """A fresh topic with 4 queues."""
    return embedded.create_topic(fresh_name(request.node.name, "topic"), 4)


def java_producer(cluster: RealCluster, topic: str, path: Path, sharding_keys: int) -> Peer:
    return start_producer(PeerOptions(cluster.nameserver, topic, path), MESSAGES, sharding_keys=sharding_keys)


def go_producer(cluster: RealCluster, topic: str, path: Path, sharding_keys: int) -> Peer:
    options: dict[str, object] = {"namesrv": cluster.nameserver, "topic": topic, "instance": "producer"}
    options |= {"ledger": path, "messages": MESSAGES, "sharding_keys": sharding_keys}
    return go_peers.start_member(path.parent, options)


def java_consumer(cluster: RealCluster, topic: str, group: str, path: Path, orderly: bool) -> Peer:
    peer = PeerOptions(cluster.nameserver, topic, path)
    return start_consumer(peer, group, orderly=str(orderly).lower(), fail_every=FAIL_EVERY)


def lite_pull_consumer(cluster: RealCluster, topic: str, group: str, path: Path, orderly: bool) -> Peer:
    return start_lite_pull(PeerOptions(cluster.nameserver, topic, path), group)


def go_consumer(cluster: RealCluster, topic: str, group: str, path: Path, orderly: bool) -> Peer:
    options: dict[str, object] = {"namesrv": cluster.nameserver, "topic": topic, "instance": "consumer"}
    options |= {"group": group, "ledger": path, "orderly": orderly, "fail_every": FAIL_EVERY}
    return go_peers.start_member(path.parent, options)


Producing = Callable[[RealCluster, str, Path, int], Peer]
Consuming = Callable[[RealCluster, str, str, Path, bool], Peer]
java = pytest.param(java_producer, java_consumer, id="java")
go = pytest.param(go_producer, go_consumer, id="go", marks=needs_go)
lite_pull = pytest.param(java_producer, lite_pull_consumer, id="lite_pull")


@pytest.mark.parametrize(("produce", "consume"), [java, go, lite_pull])
def test_a_concurrent_consumer_handles_each_message_once_and_retries_failures(
    embedded: RealCluster,  # noqa: F811
    topic: str,
    group: str,
    tmp_path: Path,
    produce: Producing,
    consume: Consuming,
) -> None:
    """Failed messages return in the retry topic. The committed offsets are at the ends of the queues."""
    sent, handled = tmp_path / "sent", tmp_path / "handled"
    with produce(embedded, topic, sent, 0) as producer:
        assert producer.wait() == 0
    stored = {entry.key: (entry.queue, entry.offset) for entry in ledger.read(sent)}
    assert len(stored) == MESSAGES
    failing = _failing(stored) if consume is not lite_pull_consumer else set()
    # Java queries routes every 30 s, so it would miss the retry topic that its first heartbeat creates
    embedded.create_topic(f"%RETRY%{group}", 1)

    with consume(embedded, topic, group, handled, False) as consumer:
        wait_until(lambda: ledger.Tail().finished([handled]) == set(stored), "all is finished", 60)
        consumer.stop()

    entries = ledger.read(handled)
    finished = [entry for entry in entries if entry.event == ledger.FINISH]
    assert Counter(entry.key for entry in finished) == dict.fromkeys(stored, 1)
    first = {entry.key: (entry.queue, entry.offset) for entry in finished if entry.reconsume_times == 0}
    assert first == {key: place for key, place in stored.items() if key not in failing}
    assert {entry.key for entry in entries if entry.event == ledger.FAIL} == failing
    assert {entry.reconsume_times for entry in finished if entry.key in failing} <= {1}
    _check_committed(embedded, topic, group)


@pytest.mark.parametrize(("produce", "consume"), [java, go])
def test_an_orderly_consumer_keeps_the_order_of_each_sharding_key(
    embedded: RealCluster,  # noqa: F811
    topic: str,
    group: str,
    tmp_path: Path,
    produce: Producing,
    consume: Consuming,
) -> None:
    """A failed message is retried before the next message of its key starts."""
    sent, handled = tmp_path / "sent", tmp_path / "handled"
    with produce(embedded, topic, sent, SHARDING_KEYS) as producer:
        assert producer.wait() == 0
    keys = [entry.key for entry in ledger.read(sent)]
    queues = {(ledger.sharding(entry.key)[0], entry.queue) for entry in ledger.read(sent)}
    assert len(keys) == MESSAGES
    assert len(queues) == SHARDING_KEYS

    with consume(embedded, topic, group, handled, True) as consumer:
        wait_until(lambda: ledger.Tail().finished([handled]) == set(keys), "all is finished", 60)
        consumer.stop()

    entries = ledger.read(handled)
    assert Counter(entry.key for entry in entries if entry.event == ledger.FINISH) == dict.fromkeys(keys, 1)
    assert {entry.key for entry in entries if entry.event == ledger.FAIL} == _failing(keys)
    for name, _ in queues:
        starts = [ledger.sharding(entry.key) for entry in entries if entry.event == ledger.START]
        numbers = [number for key, number in starts if key == name]
        assert numbers == sorted(numbers)
        assert list(dict.fromkeys(numbers)) == list(range(MESSAGES // SHARDING_KEYS))
    _check_committed(embedded, topic, group)


@needs_go
async def test_members_of_three_clients_share_a_group(
    embedded: RealCluster,  # noqa: F811
    topic: str,
    group: str,
    tmp_path: Path,
) -> None:
    """Each queue has one owner, of any client, so each message is handled once."""
    by_java, by_go, by_rmqd = tmp_path / "java", tmp_path / "go", Seen()
    with (
        java_consumer(embedded, topic, group, by_java, False) as java_member,
        go_consumer(embedded, topic, group, by_go, False),
    ):
        async with member(embedded.nameserver, by_rmqd, group=group, subscriptions=[topic]):
            # in a thread, because the rmqd member answers these queries in the event loop's thread
            await eventually(
                lambda: asyncio.to_thread(_is_shared, embedded, group, topic, java_member.client_id), "all share", 60
            )
            keys = {f"m-{number}" for number in range(MESSAGES)}
            with Producer(embedded.broker.address, topic, 4) as producer:
                for key in sorted(keys):
                    producer.send(b"body", key=key)
            tail = ledger.Tail()
            await eventually(lambda: keys <= {*tail.finished([by_java, by_go]), *by_rmqd.keys}, "all is handled", 60)
            # counted before a member leaves: Go then acquires a queue of Java's before Java has committed
            finished = [entry.key for entry in ledger.read(by_java, by_go) if entry.event == ledger.FINISH]
            handled = Counter([*finished, *by_rmqd.keys])

    assert handled == dict.fromkeys(keys, 1)
    assert ledger.Tail().finished([by_java])
    assert ledger.Tail().finished([by_go])
    assert by_rmqd.keys


def test_java_pops_each_message_once_and_retries_failures(
    embedded: RealCluster,  # noqa: F811
    topic: str,
    group: str,
    tmp_path: Path,
) -> None:
    """It queries its assignment, pops, acknowledges, and makes failed messages invisible for 10 s."""
    embedded.set_consume_mode(topic, group, "POP")
    sent, handled = tmp_path / "sent", tmp_path / "handled"
    with java_producer(embedded, topic, sent, 0) as producer:
        assert producer.wait() == 0
    keys = {entry.key for entry in ledger.read(sent)}
    failing = _failing(list(keys))
    peer = PeerOptions(embedded.nameserver, topic, handled)

    with start_consumer(peer, group, pop="true", fail_every=FAIL_EVERY) as consumer:
        wait_until(lambda: ledger.Tail().finished([handled]) == keys, "all is finished", 90)
        assert set(_popped(embedded, group, consumer.client_id)) == {MessageQueue(topic, "broker-a", ANY_QUEUE_ID)}
        consumer.stop()

    entries = ledger.read(handled)
    finished = [entry for entry in entries if entry.event == ledger.FINISH]
    assert Counter(entry.key for entry in finished) == dict.fromkeys(keys, 1)
    assert {entry.key for entry in entries if entry.event == ledger.FAIL} == failing
    assert {entry.key for entry in finished if entry.reconsume_times == 1} == failing


def test_a_message_that_java_fails_too_often_is_a_dead_letter(
    embedded: RealCluster,  # noqa: F811
    topic: str,
    group: str,
    tmp_path: Path,
) -> None:
    """After two retries, each after its delay."""
    attempts = tmp_path / "attempts"
    options = {"attempts": attempts, "subscriptions": f"{topic}=TAG=*", "max_reconsume_times": 2}
    with Producer(embedded.broker.address, topic, 4) as producer:
        producer.send(b"poison", key="bad", properties={"script": "later"})
        producer.send(b"good", key="good", properties={"script": "ok"})
    with start_scripted(embedded.nameserver, group, tmp_path, **options):
        wait_until(lambda: dead_letter_count(embedded, group), "there is a dead letter", 60)

    lines = [Attempt.parse(line) for line in attempts.read_text().splitlines()]
    assert [one.reconsume_times for one in lines if one.keys == "bad"] == [0, 1, 2]
    assert [one.reconsume_times for one in lines if one.keys == "good"] == [0]
    assert dead_letter_count(embedded, group) == 1


def _is_shared(cluster: RealCluster, group: str, topic: str, client_id: str) -> bool:
    """Return whether there are three members, with this one, that own the four queues."""
    answer = rpc.call(
        cluster.broker.address, rpc.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}, accepted=(rpc.SUCCESS, 1)
    )
    members: list[str] = json.loads(answer.body)["consumerIdList"] if answer.body else []
    if len(members) != 3 or client_id not in members:
        return False
    owned = [_queues(cluster, group, one, topic) for one in members]
    return all(owned) and sorted(queue for queues in owned for queue in queues) == [0, 1, 2, 3]


def _queues(cluster: RealCluster, group: str, client_id: str, topic: str) -> set[int]:
    """Return the queues that a member reports."""
    return {queue.queue_id for queue in _running_info(cluster, group, client_id).mq_table if queue.topic == topic}


def _popped(cluster: RealCluster, group: str, client_id: str) -> list[MessageQueue]:
    """Return the popped queues that a member reports."""
    return list(_running_info(cluster, group, client_id).mq_pop_table)


def _running_info(cluster: RealCluster, group: str, client_id: str) -> ConsumerRunningInfo:
    asked: dict[str, object] = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
    return ConsumerRunningInfo.from_json(rpc.call(cluster.broker.address, GET_CONSUMER_RUNNING_INFO, asked).body)


def _failing(keys: object) -> set[str]:
    """Return the keys whose first attempt fails in the clients."""
    assert isinstance(keys, dict | list)
    return {key for key in keys if zlib.crc32(key.encode()) % FAIL_EVERY == FAIL_EVERY - 1}


def _check_committed(cluster: RealCluster, topic: str, group: str) -> None:
    """Wait for the commits. A client's last commit may still be on its way when it has stopped."""
    for queue in range(4):
        place: dict[str, object] = {"topic": topic, "queueId": queue}
        end = _offset(cluster, rpc.GET_MAX_OFFSET, place)
        asked = place | {"consumerGroup": group, "setZeroIfNotFound": "true"}
        wait_until(partial(_is_at, cluster, asked, end), f"queue {queue} is committed up to {end}", 10)


def _is_at(cluster: RealCluster, asked: dict[str, object], end: int) -> bool:
    return _offset(cluster, rpc.QUERY_CONSUMER_OFFSET, asked) == end


def _offset(cluster: RealCluster, code: int, asked: dict[str, object]) -> int:
    return int(rpc.call(cluster.broker.address, code, asked).fields["offset"])
