"""`--workers N` on a real RocketMQ: the queues are divided, a killed worker is replaced, a reload repeats nothing."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster, ledger, offsets
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until


def finished(path: Path) -> Counter[str]:
    """How often each key was handled to the end."""
    return Counter(entry.key for entry in ledger.read(path) if entry.event == ledger.FINISH)


def send(cluster: RealCluster, topic: str, numbers: Iterable[int]) -> None:
    """Send a message for each number, to the queues in turn."""
    with Producer(cluster.broker.address, topic) as producer:
        for number in numbers:
            producer.send(key=f"m{number}")


def share(rmqd: RmqdProcess, group: str, topic: str) -> dict[int, int]:
    """How many of the topic's queues each worker owns."""
    queues = [queue for queue in rmqd.queues(group) if queue["topic"] == topic and not queue["is_retry"]]
    owners = {(queue["worker"], queue["client_id"]) for queue in queues}
    assert len(owners) == len({worker for worker, _ in owners}), "a worker has one client id"
    return Counter(queue["worker"] for queue in queues)


def workers(rmqd: RmqdProcess) -> dict[int, int]:
    """Process ids by worker number."""
    return {worker["worker"]: worker["pid"] for worker in rmqd.status()["workers"]}


def test_workers_share_a_group_and_outlive_one_another(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Counters never fall, neither when a worker is killed nor when a reload restarts the group."""
    path = tmp_path / "ledger"
    send(rocketmq, topic, range(1000))
    groups = {group: ledger_group(topic, path, "a", consume_from_where="first_offset")}
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, groups, "--workers", "2") as rmqd:

        def acked() -> float:
            return rmqd.metric("rmqd_messages_handled_total", group=group, result="acked")

        rmqd.wait_ready()
        wait_until(lambda: share(rmqd, group, topic) == {1: 4, 2: 4}, "each worker owns half of the queues")
        wait_until(lambda: acked() == 1000, "all messages are counted in one sum")
        wait_until(
            lambda: offsets.committed(rocketmq, group, topic) == offsets.stored(rocketmq, topic), "all is committed"
        )

        old = workers(rmqd)
        os.kill(old[1], signal.SIGKILL)
        wait_until(lambda: workers(rmqd).get(1, old[1]) != old[1], "the killed worker is replaced")
        assert acked() == 1000
        wait_until(lambda: share(rmqd, group, topic) == {1: 4, 2: 4}, "the new worker owns half of the queues", 40)
        rmqd.wait_ready()
        send(rocketmq, topic, range(1000, 2000))
        wait_until(lambda: acked() == 2000, "the new messages are added to the counter")

        rmqd.write_config(rocketmq.nameserver, {group: {**groups[group], "consume_message_batch_max_size": 2}})
        rmqd.signal(signal.SIGHUP)
        wait_until(lambda: rmqd.events("config.reloaded"), "the reload is done")
        send(rocketmq, topic, range(2000, 3000))
        wait_until(lambda: acked() == 3000, "messages after the reload are counted")
        assert rmqd.terminate()[0] == 0

    assert set(finished(path)) == {f"m{number}" for number in range(3000)}
    assert set(finished(path).values()) == {1}
    assert offsets.committed(rocketmq, group, topic) == offsets.stored(rocketmq, topic)
