"""Filters and limits that change while a group runs: no message that both filters match is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.consumer.consumer_options import Subscription
from tests.cli.command import rmqd as run_rmqd
from tests.conformance import behaviour
from tests.consumer.groups import group_options
from tests.consumer.members import Member, member
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster, ledger, offsets
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually, wait_until

pytestmark = pytest.mark.rocketmq


async def test_members_that_change_filters_one_by_one_lose_no_common_message(
    rocketmq: RealCluster, topic: str, group: str
) -> None:
    """Between the two changes, brokers apply the newer filter to both members."""
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
        await eventually(lambda: sender.wanted <= set(seen.keys), "all common messages are handled")
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")
    counts = Counter(key for key in seen.keys if key in sender.wanted)
    assert counts.keys() == sender.wanted
    assert set(counts.values()) == {1}


@contextlib.contextmanager
def sending_aside(cluster: RealCluster, topic: str) -> Iterator[Sender]:
    """Like `sending`, in a thread, for a test without an event loop."""
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


def test_a_reload_applies_filter_and_limit_to_the_running_workers(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """No worker leaves the group, no message is lost or repeated, and `rmqd reload` reports the group as updated."""
    path = tmp_path / "ledger"

    def settings(filter_now: str, rate: int) -> dict[str, dict[str, Any]]:
        return {group: ledger_group(topic, path, "a", subscriptions={topic: filter_now}, pull_rate_limit=rate)}

    def handled() -> Counter[str]:
        return Counter(entry.key for entry in ledger.read(path) if entry.event == ledger.FINISH)

    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, settings("a || b", 0), "--workers", "2") as rmqd:
        rmqd.wait_ready()
        wait_until(lambda: workers_with_queues(rmqd) == {1, 2}, "the workers share the queues")
        wait_until(lambda: has_retry_queue(rmqd), "a worker has the retry queue, whose route is found later")
        rebalances = rmqd.metric("rmqd_rebalances_total", group=group)
        with sending_aside(rocketmq, topic) as sender:
            for filter_now, rate in [("a || c", 5000), ("a || b", 0), ("a || c", 1000), ("a || b", 0)]:
                count = handled().total() if path.exists() else 0
                rmqd.write_config(rocketmq.nameserver, settings(filter_now, rate))
                ended = run_rmqd("reload", "--http", rmqd.http, "-o", "json")
                assert ended.code == 0, ended.err
                assert (ended.json()["updated"], ended.json()["restarted"]) == ([group], [])
                wait_until(lambda count=count: handled().total() > count + 50, "it goes on")  # type: ignore[misc]
        wait_until(lambda: sender.wanted <= handled().keys(), "all common messages are handled")
        assert rmqd.metric("rmqd_rebalances_total", group=group) == rebalances
        updates = rmqd.events("group.updated")
        assert sorted(event["pull_rate_limit"] for event in updates) == [0, 0, 0, 0, 500, 500, 2500, 2500]
        assert rmqd.terminate()[0] == 0
    counts = handled()
    assert {counts[key] for key in sender.wanted} == {1}


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_a_reload_with_an_invalid_sql_filter_changes_nothing(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """The broker's error is reported with the key. No worker is replaced, and the old filter stays in force."""
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


def test_a_broker_that_filters_by_tags_only_is_reported_with_its_setting(
    rocketmq_faulty: RealCluster, group: str, tmp_path: Path
) -> None:
    """A reload changes nothing. At a start the group fails with the reason, and runs once the broker filters."""
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


SQL_A_OR_C = Subscription("TAGS IS NOT NULL AND TAGS IN ('a', 'c')", "SQL92")


SQL_A_OR_B = Subscription("TAGS IS NOT NULL AND TAGS IN ('a', 'b')", "SQL92")


TAGS = {"a || b": "b", "a || c": "c", SQL_A_OR_C.expression: "c", SQL_A_OR_B.expression: "b"}
"""Filters, each with the tag that the other one does not have."""


PAUSE_SECONDS = 0.002


class Sender:
    """Sends messages with the tags a, b and c, one every few milliseconds, until `end` is called."""

    def __init__(self, cluster: RealCluster, topic: str) -> None:
        self._producer = Producer(cluster.broker.address, topic)
        self._ending = False
        self.sent = 0

    def run(self) -> None:
        with self._producer:
            while not self._ending:
                self._producer.send(key=f"{'abc'[self.sent % 3]}{self.sent}", tags="abc"[self.sent % 3])
                self.sent += 1
                time.sleep(PAUSE_SECONDS)

    def end(self) -> None:
        self._ending = True

    @property
    def wanted(self) -> set[str]:
        """The keys of the messages that every filter matches."""
        return {f"a{number}" for number in range(0, self.sent, 3)}


@contextlib.asynccontextmanager
async def sending(cluster: RealCluster, topic: str) -> AsyncIterator[Sender]:
    sender = Sender(cluster, topic)
    running = asyncio.create_task(asyncio.to_thread(sender.run))
    try:
        yield sender
    finally:
        sender.end()
        await running


async def change(m: Member, group: str, topic: str, filter_now: str | Subscription, **values: object) -> None:
    options = {"group": group, "subscriptions": {topic: filter_now}, "persist_consumer_offset_interval_seconds": 0.2}
    await m.consumer.change(group_options(**options, **values))


@behaviour(
    "filters",
    "A changed filter loses and repeats no message that both the old and the new filter match",
    java="unsubscribe and subscribe: cached messages pass by either filter",
    rmqd="brokers know the new filter before the first pull with it; pulls in flight are sent again",
    checked="40 changes while a producer sends",
)
@pytest.mark.parametrize(
    "filters",
    [
        pytest.param(("a || c", "a || b"), id="tags"),
        pytest.param((SQL_A_OR_C, "a || b"), id="sql_and_tags"),
        pytest.param((SQL_A_OR_C, SQL_A_OR_B), id="sql"),
    ],
)
async def test_alternating_filters_lose_no_message_that_both_match(
    rocketmq: RealCluster, topic: str, group: str, filters: tuple[str | Subscription, str | Subscription]
) -> None:
    """Each is handled once, and so are messages sent after a change that only the new filter matches."""
    seen, marks = Seen(), []
    async with (
        member(
            rocketmq.nameserver, seen, group=group, subscriptions={topic: filters[1]},
            persist_consumer_offset_interval_seconds=0.2, consume_from_where="first_offset",
        ) as m,
        sending(rocketmq, topic) as sender,
    ):  # fmt: skip
        await eventually(lambda: len(seen.attempts) > 50, "the member consumes")
        with Producer(rocketmq.broker.address, topic) as marker:
            for number, filter_now in zip(range(40), itertools.cycle(filters), strict=False):
                await change(m, group, topic, filter_now)
                tag = TAGS[filter_now if isinstance(filter_now, str) else filter_now.expression]
                for queue in range(8):
                    marks.append(f"mark{number}.{queue}")
                    marker.send(key=marks[-1], tags=tag, queue=queue)
                await eventually(lambda: set(marks[-8:]) <= set(seen.keys), f"messages sent after change {number}")
        sender.end()
        await eventually(lambda: sender.wanted <= set(seen.keys), "all that both filters match are handled")
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")
    counts = Counter(key for key in seen.keys if key in sender.wanted or key in set(marks))
    assert counts.keys() == sender.wanted | set(marks)
    assert set(counts.values()) == {1}
    assert sender.sent > 100
