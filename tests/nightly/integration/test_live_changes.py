"""Filters and limits that change while a group runs, at a real broker: nothing that both filters match is lost."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.consumer.consumer_options import Subscription
from tests.cli.command import rmqd as run_rmqd
from tests.consumer.members import member
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.integration.test_live_changes import SQL_A_OR_B, SQL_A_OR_C, Sender, change, sending
from tests.rocketmq import RealCluster, ledger, offsets
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually, wait_until

pytestmark = pytest.mark.rocketmq
"""Filters, each with the tag that the other one does not have."""


async def test_members_that_change_at_different_moments_lose_nothing_that_both_filters_match(
    rocketmq: RealCluster, topic: str, group: str
) -> None:
    """In between the brokers go by the newer filter, for both members."""
    seen = Seen()
    values: dict[str, Any] = {"group": group, "subscriptions": {topic: "a || b"}}
    values |= {"persist_consumer_offset_interval_seconds": 0.2, "consume_from_where": "first_offset"}
    async with (
        member(rocketmq.nameserver, seen, **values) as one,
        member(rocketmq.nameserver, seen, **values) as two,
        sending(rocketmq, topic) as sender,
    ):
        await eventually(lambda: len(one.owned()) == len(two.owned()) == 4, "each has half of the queues")
        flips: list[str | Subscription] = ["a || c", SQL_A_OR_B, "a || c", "a || b", SQL_A_OR_C, SQL_A_OR_B, "a || b"]
        for filter_now in flips:
            for m in (one, two):
                await change(m, group, topic, filter_now)
                count = len(seen.attempts)
                await eventually(lambda count=count: len(seen.attempts) > count + 30, "it goes on")  # type: ignore[misc]
        sender.end()
        await eventually(lambda: sender.wanted <= set(seen.keys), "all that every filter matches")
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")
    counts = Counter(key for key in seen.keys if key in sender.wanted)
    assert counts.keys() == sender.wanted
    assert set(counts.values()) == {1}


@contextlib.contextmanager
def sending_aside(cluster: RealCluster, topic: str) -> Iterator[Sender]:
    """The same beside a test without a loop."""
    import threading

    sender = Sender(cluster, topic)
    thread = threading.Thread(target=sender.run)
    thread.start()
    try:
        yield sender
    finally:
        sender.end()
        thread.join()


def workers_with_queues(rmqd: RmqdProcess) -> set[int]:
    """The workers that have queues of a topic."""
    (group,) = rmqd.status()["groups"]
    return {queue["worker"] for queue in group["queues"] if not queue["is_retry"]}


def has_retry_queue(rmqd: RmqdProcess) -> bool:
    """Whether a worker has the queue of the group's retry topic."""
    (group,) = rmqd.status()["groups"]
    return any(queue["is_retry"] for queue in group["queues"])


def test_a_reload_hands_filter_and_limit_to_the_running_workers(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """No worker leaves the group, nothing is lost or repeated, and `rmqd reload` says that the group was updated."""
    path = tmp_path / "ledger"

    def settings(filter_now: str, rate: int) -> dict[str, dict[str, Any]]:
        return {group: ledger_group(topic, path, "a", subscriptions={topic: filter_now}, pull_rate_limit=rate)}

    def handled() -> Counter[str]:
        return Counter(entry.key for entry in ledger.read(path) if entry.event == ledger.FINISH)

    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, settings("a || b", 0), "--workers", "2") as rmqd:
        rmqd.wait_ready()
        wait_until(lambda: workers_with_queues(rmqd) == {1, 2}, "the workers share the queues")
        wait_until(lambda: has_retry_queue(rmqd), "one of them has that of the retry topic, whose route came later")
        rebalances = rmqd.metric("rmqd_rebalances_total", group=group)
        with sending_aside(rocketmq, topic) as sender:
            for filter_now, rate in [("a || c", 5000), ("a || b", 0), ("a || c", 1000), ("a || b", 0)]:
                count = handled().total() if path.exists() else 0
                rmqd.write_config(rocketmq.nameserver, settings(filter_now, rate))
                ended = run_rmqd("reload", "--http", rmqd.http, "-o", "json")
                assert ended.code == 0, ended.err
                assert (ended.json()["updated"], ended.json()["restarted"]) == ([group], [])
                wait_until(lambda count=count: handled().total() > count + 50, "it goes on")  # type: ignore[misc]
        wait_until(lambda: sender.wanted <= handled().keys(), "all that every filter matches")
        assert rmqd.metric("rmqd_rebalances_total", group=group) == rebalances
        updates = rmqd.events("group.updated")
        assert sorted(event["pull_rate_limit"] for event in updates) == [0, 0, 0, 0, 500, 500, 2500, 2500]
        assert rmqd.terminate()[0] == 0
    counts = handled()
    assert {counts[key] for key in sender.wanted} == {1}


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_a_reload_with_an_sql_filter_that_is_none_changes_nothing(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """The broker's complaint is told with the place; no worker is replaced, and the old filter stays in force."""
    path = tmp_path / "ledger"

    def settings(filter_now: str | dict[str, str]) -> dict[str, dict[str, Any]]:
        return {group: ledger_group(topic, path, "a", subscriptions={topic: filter_now})}

    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, settings("a"), *arguments) as rmqd:
        rmqd.wait_ready()
        rmqd.write_config(rocketmq.nameserver, settings({"sql": "price >"}))
        ended = run_rmqd("reload", "--http", rmqd.http)
        assert ended.code == 78
        assert re.search(rf"groups\.{group}\.subscriptions\.{topic}: broker-a .* refuses the SQL filter", ended.err)
        with Producer(rocketmq.broker.address, topic) as producer:
            producer.send(key="wanted", tags="a")
        wait_until(lambda: path.exists() and "wanted" in path.read_text(), "the old filter is in force")
        assert rmqd.events("group.updated") == rmqd.events("worker.died") == []
        assert rmqd.terminate()[0] == 0


def test_a_broker_that_filters_by_tags_only_is_named_and_its_setting_too(
    rocketmq_faulty: RealCluster, group: str, tmp_path: Path
) -> None:
    """At a reload nothing changes; at a start the group fails with the reason, and runs once the broker filters."""
    topic = rocketmq_faulty.create_topic(f"{group}_t", 1)
    broker = rocketmq_faulty.broker
    path = tmp_path / "ledger"

    def property_filter(value: str) -> None:
        rocketmq_faulty.admin("updateBrokerConfig", "-b", broker.address, "-k", "enablePropertyFilter", "-v", value)

    def settings(filter_now: str | dict[str, str]) -> dict[str, dict[str, Any]]:
        return {group: ledger_group(topic, path, "a", subscriptions={topic: filter_now})}

    property_filter("false")
    try:
        with RmqdProcess(tmp_path / "rmqd", rocketmq_faulty.nameserver, settings("a")) as rmqd:
            rmqd.wait_ready()
            rmqd.write_config(rocketmq_faulty.nameserver, settings({"sql": "price > 1"}))
            ended = run_rmqd("reload", "--http", rmqd.http)
            assert ended.code == 78
            place = rf"rmqd\.yaml:\d+:\d+: groups\.{group}\.subscriptions\.{topic}: broker-a"
            assert re.search(place, ended.err)
            assert "set enablePropertyFilter=true" in ended.err
            assert rmqd.get("/readyz")[0] == 200
            checked = run_rmqd("check", "--connect", "-c", rmqd.config_path, "-o", "json")
            assert checked.code == 1
            assert "set enablePropertyFilter=true" in json.dumps(checked.json())
            rmqd.signal(signal.SIGTERM)
            rmqd.wait()
            rmqd.start()
            failure = wait_until(lambda: rmqd.events("group.failed"), "the group fails")[0]
            assert "set enablePropertyFilter=true" in failure["error"]
            property_filter("true")
            rmqd.wait_ready()
    finally:
        property_filter("true")
