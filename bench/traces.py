"""The stored share of a contender's message trace. Clients drop records that they cannot send in time."""

from __future__ import annotations

from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from tests.rocketmq import RealCluster, offsets, rpc

TOPIC = "RMQ_SYS_TRACE_TOPIC"
PULL_BATCH = 32
RECORD_END, FIELD_END = b"\x02", b"\x01"
HANDLED = b"SubAfter"
PULL_MESSAGE, FOUND, NOT_FOUND, MOVED = 11, 0, 19, 21


def stored(cluster: RealCluster) -> dict[offsets.Queue, int]:
    """Return the offsets at which the next contender's trace begins."""
    return offsets.stored(cluster, TOPIC)


def handled(cluster: RealCluster, group: str, since: dict[offsets.Queue, int]) -> int:
    """Return how many messages the group has handled since then, according to the trace."""
    addresses = offsets.queues(cluster, TOPIC)
    return sum(_handled_in(cluster, addresses[queue], queue, group, start) for queue, start in since.items())


def _handled_in(cluster: RealCluster, address: str, queue: offsets.Queue, group: str, start: int) -> int:
    count, offset, name = 0, start, group.encode()
    with rpc.connect(address, cluster.credentials, 10) as link:
        while True:
            answer = rpc.exchange(
                link, PULL_MESSAGE, _pull(queue, offset), credentials=cluster.credentials,
                accepted=(FOUND, NOT_FOUND, MOVED),
            )  # fmt: skip
            if answer.code != FOUND:
                return count
            offset = int(answer.fields["nextBeginOffset"])
            block = decode_messages(answer.body, MessageQueue(TOPIC, queue.broker, queue.queue_id))
            for message in block.messages:
                records = message.body.split(RECORD_END)
                count += sum(record.startswith(HANDLED) and name in record.split(FIELD_END) for record in records)


def _pull(queue: offsets.Queue, offset: int) -> dict[str, object]:
    return {
        "consumerGroup": "bench_traces",
        "topic": TOPIC,
        "queueId": queue.queue_id,
        "queueOffset": offset,
        "maxMsgNums": PULL_BATCH,
        "sysFlag": 4,  # with the subscription, and without a long poll
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }
