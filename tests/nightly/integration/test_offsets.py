"""The broker's committed offsets of a group while rmqd runs and after it stopped."""

from __future__ import annotations

from pathlib import Path

from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.integration.test_consumer_subscriptions import COMMITTED, HELD
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.offsets import Queue
from tests.rocketmq.producer import Producer
from tests.smoke.test_offsets import finished
from tests.waiting import wait_until

PERSIST_SECONDS = 5.0
MARGIN_SECONDS = 10.0
BROKER = "broker-a"


@COMMITTED
def test_offsets_of_handled_messages_are_committed_within_seconds(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Each queue's offset is committed every 5 s."""
    path = tmp_path / "ledger"
    with Producer(rocketmq.broker.address, topic) as producer:
        for start in range(0, 2000, 25):
            producer.send_batch([f"m{number}" for number in range(start, start + 25)])

    with RmqdProcess(
        tmp_path / "rmqd",
        rocketmq.nameserver,
        {group: ledger_group(topic, path, "a", consume_from_where="first_offset")},
    ):
        wait_until(lambda: len(finished(path)) == 2000, "2000 messages are handled", 30)
        wait_until(
            lambda: offsets.committed(rocketmq, group, topic) == offsets.stored(rocketmq, topic),
            "the committed offsets are those of the ends of the queues",
            PERSIST_SECONDS + MARGIN_SECONDS,
        )

    assert set(finished(path).values()) == {1}


@HELD
def test_unfinished_message_holds_its_queues_offset(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Later messages of its queue are handled, but no offset above the unfinished message is committed."""
    path = tmp_path / "ledger"
    with Producer(rocketmq.broker.address, topic) as producer:
        for number in range(10):
            producer.send(key=f"before{number}", queue=3)
        _, held = producer.send(key="slow", queue=3)
        for number in range(10):
            producer.send(key=f"after{number}", queue=3)
    options = {"slow_key": "slow", "slow_seconds": 60}
    config = ledger_group(
        topic, path, "a", handler_options=options, shutdown_timeout="1s", consume_from_where="first_offset"
    )

    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: config}) as rmqd:
        wait_until(lambda: len(finished(path)) == 20, "all but the slow message are handled")
        wait_until(
            lambda: offsets.committed(rocketmq, group, topic).get(Queue(BROKER, 3)) == held,
            f"offset {held}, that of the slow message, is committed",
            PERSIST_SECONDS + MARGIN_SECONDS,
        )
        status, seconds = rmqd.terminate()

    assert status == 0
    assert seconds < 1 + MARGIN_SECONDS
    assert offsets.committed(rocketmq, group, topic)[Queue(BROKER, 3)] == held
