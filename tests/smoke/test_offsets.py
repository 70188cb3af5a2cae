"""A graceful stop, kill -9, and a group in mqadmin."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.conformance import behaviour
from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster, ledger, offsets
from tests.rocketmq.offsets import Queue
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until

pytestmark = pytest.mark.rocketmq


def finished(path: Path) -> Counter[str]:
    """Return how often each key was handled successfully."""
    return Counter(entry.key for entry in ledger.read(path) if entry.event == ledger.FINISH)


@behaviour(
    "operators",
    "`consumerProgress` and `consumerConnection` show the group",
    java="with its client, type, model and lag",
    rmqd="the same; its language is PYTHON",
    checked="mqadmin",
)
def test_mqadmin_shows_the_group_its_client_and_no_lag(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """`mqadmin consumerProgress` and `consumerConnection` show the group like one of a Java consumer."""
    path = tmp_path / "ledger"
    with Producer(rocketmq.broker.address, topic) as producer:
        for number in range(100):
            producer.send(key=f"m{number}")

    with RmqdProcess(
        tmp_path / "rmqd",
        rocketmq.nameserver,
        {group: ledger_group(topic, path, "a", consume_from_where="first_offset")},
    ) as rmqd:
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "the lag is 0")
        queues = rocketmq.admin("consumerProgress", "-g", group)
        groups = rocketmq.admin("consumerProgress")
        connection = rocketmq.admin("consumerConnection", "-g", group)
        client_id = rmqd.status()["client_id"]

    rows = [line.split() for line in queues.splitlines() if line.startswith(topic)]
    assert [row[2] for row in rows] == [str(number) for number in range(8)]
    assert re.search(r"Diff Total: 0$", queues, re.MULTILINE)
    assert re.search(rf"^{group} +1 .* PUSH .* CLUSTERING .* 0 *$", groups, re.MULTILINE), groups
    assert client_id in connection


@behaviour(
    "offsets",
    "A graceful stop commits all finished messages and leaves the group",
    java="waits for handlers only for awaitTerminationMillisWhenShutdown (0); its last commits are one-way",
    rmqd="waits for handlers up to shutdown_timeout; its last commits are answered",
    checked="a ledger and the broker's offsets: no message is handled twice",
)
def test_sigterm_under_load_commits_all_finished_messages(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """The daemon stops in time with status 0. The next daemon handles the remaining messages, and none twice."""
    path = tmp_path / "ledger"
    config = ledger_group(
        topic, path, "a", handler_options={"seconds": 0.05}, shutdown_timeout="60s", consume_from_where="first_offset"
    )
    with (
        Load(rocketmq, topic, 3000, per_second=500) as load,
        RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: config}) as rmqd,
    ):
        wait_until(lambda: len(finished(path)) > 500, "500 messages are handled")
        status, seconds = rmqd.terminate()

        assert status == 0
        assert seconds < 60
        committed = offsets.committed(rocketmq, group, topic)
        entries = ledger.read(path)
        begun = {entry.key for entry in entries if entry.event == ledger.START}
        assert begun == set(finished(path)), "all started messages are finished"
        assert not [
            entry
            for entry in entries
            if entry.event == ledger.FINISH and entry.offset >= committed.get(Queue(entry.broker, entry.queue), 0)
        ], "all finished messages are committed"
        assert offsets.members(rocketmq, group) == []

        rmqd.start()
        load.wait(30)
        wait_until(lambda: len(finished(path)) == 3000, "everything is handled", 30)

    assert set(finished(path).values()) == {1}, "no message is handled twice"


@behaviour(
    "offsets",
    "kill -9 loses no message",
    java="uncommitted messages are handled again",
    rmqd="the same",
    checked="a ledger over two kills",
)
def test_kill_loses_no_message(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """After kill -9 with many pulled messages in the cache, the next daemon handles all unfinished messages."""
    path = tmp_path / "ledger"
    keys = {f"m{number}" for number in range(2000)}
    with Producer(rocketmq.broker.address, topic) as producer:
        for start in range(0, 2000, 20):
            producer.send_batch([f"m{number}" for number in range(start, start + 20)])
    config = ledger_group(
        topic,
        path,
        "a",
        handler_options={"seconds": 0.02},
        persist_consumer_offset_interval="200ms",
        consume_from_where="first_offset",
    )
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: config}) as rmqd:
        for target in (400, 1000):
            wait_until(partial(more_than, path, target), f"{target} messages are handled", 40)
            rmqd.kill()
            rmqd.start()
        wait_until(lambda: finished(path).keys() == keys, "every message is handled", 40)


def more_than(path: Path, number: int) -> bool:
    """Return whether more than `number` messages were handled."""
    return len(finished(path)) > number
