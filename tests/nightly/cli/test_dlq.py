"""`rmqd dlq`: dead letters of rmqd and Java members, and their reasons."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rmqd import DeadLetter
from rmqd.handler_api.batch import Batch
from tests.cli.command import rmqd
from tests.consumer.members import member
from tests.nightly.cli.test_lag import commit
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.peers import start_scripted
from tests.rocketmq.producer import Producer
from tests.waiting import eventually, wait_until

pytestmark = pytest.mark.process


def listed(cluster: RealCluster, group: str) -> dict[str, Any]:
    """The group's entry in `rmqd dlq list`; empty if it has none."""
    ended = rmqd("dlq", "list", "-n", cluster.nameserver, "-o", "json")
    assert ended.code == 0, ended.err
    found: list[dict[str, Any]] = [one for one in ended.json() if one["group"] == group]
    return found[0] if found else {}


async def test_dead_letters_are_shown_with_their_reason(rocketmq: RealCluster, topic: str, group: str) -> None:
    """The newest letters are shown in their order, and stay in the topic."""

    async def give_up(batch: Batch) -> None:
        raise DeadLetter(f"no such order: {batch[0].keys}")

    with Producer(rocketmq.broker.address, topic) as producer:
        for number in range(5):
            producer.send(key=f"k{number}", queue=0)
    options: dict[str, Any] = {"group": group, "subscriptions": [topic], "consume_from_where": "first_offset"}
    async with member(rocketmq.nameserver, give_up, persist_consumer_offset_interval_seconds=0.2, **options):

        async def are_there() -> bool:
            return (await asyncio.to_thread(listed, rocketmq, group)).get("messages") == 5

        await eventually(are_there, "all messages are dead-lettered")
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all offsets are committed")
    line = await asyncio.to_thread(listed, rocketmq, group)
    assert (line["brokers"], line["last_stored_ms"] > 0) == (["broker-a"], True)
    for _ in range(2):
        shown = await asyncio.to_thread(rmqd, "dlq", "show", group, "-n", rocketmq.nameserver, "-o", "json")
        letters = shown.json()
        assert {one["keys"] for one in letters} == {f"k{number}" for number in range(5)}
        assert [one["stored_at_ms"] for one in letters] == sorted(one["stored_at_ms"] for one in letters)
        assert {one["origin_topic"] for one in letters} == {topic}
        assert {one["reason"] for one in letters} == {f"no such order: k{number}" for number in range(5)}
    newest = await asyncio.to_thread(rmqd, "dlq", "show", group, "--most", "2", "-n", rocketmq.nameserver, "-o", "json")
    assert [one["offset"] for one in newest.json()] == [one["offset"] for one in letters[-2:]]
    table = await asyncio.to_thread(rmqd, "dlq", "show", group, "-n", rocketmq.nameserver)
    assert (table.out.count("no such order: k"), table.err) == (5, "")
    assert newest.err == "rmqd: only the newest 2 are shown; use --most for more\n"


def test_java_s_dead_letters_are_shown_too(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """Java stores no reason."""
    with Producer(rocketmq.broker.address, topic) as producer:
        producer.send(key="k1", properties={"script": "later:-1"})
    options = {"subscriptions": f"{topic}=TAG=*", "attempts": tmp_path / "attempts"}
    with start_scripted(rocketmq.nameserver, group, tmp_path, **options):
        wait_until(lambda: listed(rocketmq, group).get("messages") == 1, "the message is dead-lettered")
    (letter,) = rmqd("dlq", "show", group, "-n", rocketmq.nameserver, "-o", "json").json()
    assert (letter["keys"], letter["reason"], letter["topic"]) == ("k1", None, f"%DLQ%{group}")


def test_a_group_without_dead_letters(rocketmq: RealCluster, group: str) -> None:
    ended = rmqd("dlq", "show", group, "-n", rocketmq.nameserver)
    said = f"{group} has no dead letters; run `rmqd dlq list` to see the groups that have some"
    assert (ended.code, ended.out, ended.err) == (1, "", f"rmqd: {said}\n")


def test_a_group_that_no_broker_knows_is_refused(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """Its name may be misspelt. For a known group without dead letters, both commands succeed."""
    for command in ("replay", "purge"):
        common = "dlq", command, group, "--yes", "-n", rocketmq.nameserver, "--set", f"state_dir={tmp_path / command}"
        refused = rmqd(*common)
        said = f"rmqd: no broker knows group {group}; run `rmqd dlq list` to see the groups with dead letters\n"
        assert (refused.code, refused.out, refused.err) == (1, "", said)
        assert not (tmp_path / command).exists()
    commit(rocketmq, group, topic, {0: 0})
    assert (rmqd(*common).code, rmqd("dlq", "replay", *common[2:]).code) == (0, 0)
