"""`rmqd topics`: topics and their queues, compared with mqadmin."""

from __future__ import annotations

import pytest

from tests.cli.command import rmqd
from tests.nightly.cli.test_lag import commit
from tests.rocketmq import RealCluster
from tests.rocketmq.producer import Producer


@pytest.mark.process
def test_a_topic_is_listed_and_shown_as_mqadmin_shows_it(rocketmq: RealCluster, topic: str, group: str) -> None:
    with Producer(rocketmq.broker.address, topic) as producer:
        for _ in range(10):
            producer.send()
    commit(rocketmq, group, topic, {0: 1})

    listed = rmqd("topics", "list", "-n", rocketmq.nameserver, "-o", "json")
    shown = rmqd("topics", "show", topic, "-n", rocketmq.nameserver, "-o", "json").json()
    status = rocketmq.admin("topicStatus", "-t", topic)

    assert listed.code == 0, listed.err
    (entry,) = [one for one in listed.json() if one["topic"] == topic]
    assert (entry["queues"], entry["permissions"], entry["brokers"]) == (8, "rw", ["broker-a"])
    rows = [line.split() for line in status.splitlines() if line.startswith("broker-a")]
    ends = {(row[0], int(row[1])): (int(row[2]), int(row[3])) for row in rows}
    assert {(one["broker"], one["queue"]): (one["min"], one["max"]) for one in shown["queues"]} == ends
    assert (shown["messages"], shown["groups"]) == (10, [group])
    assert shown["brokers"]["broker-a"]["read_queues"] == 8
    table = rmqd("topics", "show", topic, "-n", rocketmq.nameserver)
    assert table.out.startswith(f"{topic}  10 messages in 8 queues\n")
    assert table.out.endswith(f"read by {group}\n")


@pytest.mark.process
def test_rocketmq_s_system_topics_are_omitted(rocketmq: RealCluster, topic: str, group: str) -> None:
    commit(rocketmq, group, topic, {0: 0})
    some, every = (
        {one["topic"] for one in rmqd("topics", "list", *more, "-n", rocketmq.nameserver, "-o", "json").json()}
        for more in ((), ("--all",))
    )
    assert topic in some
    assert {"SCHEDULE_TOPIC_XXXX", "TBW102", "broker-a", "DefaultCluster"} <= every - some
    assert not {name for name in some if name.startswith(("%", "rmq_sys", "RMQ_SYS"))}


@pytest.mark.process
def test_an_unknown_topic_is_an_error(rocketmq: RealCluster) -> None:
    ended = rmqd("topics", "show", "never_made", "-n", rocketmq.nameserver)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "rmqd: no broker has topic never_made; run `rmqd topics list` to see all\n"
