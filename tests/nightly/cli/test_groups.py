"""`rmqd groups`: groups and their members, compared with mqadmin, and the consume mode."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from rmqd.wire.topics import retry_topic
from tests.cli.command import Ended, rmqd
from tests.consumer.members import member
from tests.nightly.cli.test_lag import commit
from tests.rocketmq import RealCluster, release
from tests.rocketmq.peers import PeerOptions, start_consumer
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually, wait_until

QUEUES = 8


def send(cluster: RealCluster, topic: str, count: int) -> None:
    with Producer(cluster.broker.address, topic) as producer:
        for number in range(count):
            producer.send(key=f"m{number}")


async def ask(*arguments: str | Path) -> Ended:
    """Run the command while members run in this process."""
    return await asyncio.to_thread(rmqd, *arguments)


def listed(ended: Ended, group: str) -> dict[str, Any]:
    """The group's entry in the list."""
    assert ended.code == 0, ended.err
    (entry,) = [one for one in ended.json() if one["group"] == group]
    assert isinstance(entry, dict)
    return entry


@pytest.mark.process
async def test_a_group_of_rmqd_is_listed_and_shown_with_member_and_offsets(
    rocketmq: RealCluster, topic: str, group: str
) -> None:
    seen = Seen()
    options: dict[str, Any] = {"group": group, "subscriptions": {topic: "a || b"}, "consume_from_where": "first_offset"}
    with Producer(rocketmq.broker.address, topic) as producer:
        for number in range(16):
            producer.send(key=f"m{number}", tags="a")
    nameserver = "-n", rocketmq.nameserver, "-o", "json"
    async with member(rocketmq.nameserver, seen, persist_consumer_offset_interval_seconds=0.2, **options) as m:
        await eventually(lambda: len(seen.keys) == 16, "all messages are handled")
        shown: dict[str, Any] = {}

        async def is_committed() -> bool:
            shown.update((await ask("groups", "show", group, *nameserver)).json())
            are_owned = [one["queues"] for one in shown["members"]] == [QUEUES + 1]  # and the retry topic's queue
            return are_owned and sum(queue["committed"] or 0 for queue in shown["queues"]) == 16

        await eventually(is_committed, "all queues are owned, all offsets committed, and shown", 60)
        entry = listed(await ask("groups", "list", *nameserver), group)
        table = await ask("groups", "show", group, "-n", rocketmq.nameserver)

        client_id = m.client.client_id
    assert (entry["members"], entry["consume_type"], entry["message_model"]) == (1, "push", "clustering")
    assert (entry["lag"], entry["brokers"]) == (0, ["broker-a"])
    (one,) = shown["members"]
    assert (one["client_id"], one["language"], one["version"]) == (client_id, "PYTHON", "5.5.0")
    assert shown["subscriptions"][topic] == "a || b"
    of_topic = [queue for queue in shown["queues"] if queue["topic"] == topic]
    assert {(queue["broker"], queue["queue"]) for queue in of_topic} == {("broker-a", n) for n in range(QUEUES)}
    assert {queue["owner"] for queue in of_topic} == {client_id}
    assert sum(queue["max"] for queue in of_topic) == 16
    assert shown["brokers"]["broker-a"]["consume_enable"] is True
    assert table.code == 0, table.err
    assert table.out.startswith(f"{group}  push, clustering  1 member, 0 messages behind\n")
    assert re.search(rf"^{topic} +broker-a +0 +{re.escape(client_id)} +2 +2 +0 +0s$", table.out, re.MULTILINE)


@pytest.mark.process
def test_a_java_group_is_shown_with_the_owner_of_each_queue(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    with start_consumer(PeerOptions(rocketmq.nameserver, topic, tmp_path / "ledger"), group) as java:

        def owned() -> dict[str, Any] | None:
            shown = rmqd("groups", "show", group, "-n", rocketmq.nameserver, "-o", "json")
            document = shown.json() if shown.code == 0 else {"queues": []}
            owners = [queue["owner"] for queue in document["queues"] if queue["topic"] == topic]
            return document if owners == [java.client_id] * QUEUES else None

        (one,) = wait_until(owned, "the member has all queues")["members"]
    assert (one["client_id"], one["language"], one["version"]) == (java.client_id, "JAVA", "5.5.0")


@pytest.mark.process
def test_the_lag_of_a_group_is_the_same_as_in_mqadmin(rocketmq: RealCluster, topic: str, group: str) -> None:
    """The group has no members, which is a common reason for a lag."""
    send(rocketmq, topic, 16)
    rocketmq.create_topic(retry_topic(group), 1)  # mqadmin finds groups by their retry topics
    commit(rocketmq, group, topic, {0: 1, 1: 2})
    entry = listed(rmqd("groups", "list", "-n", rocketmq.nameserver, "-o", "json"), group)
    shown = rmqd("groups", "show", group, "-n", rocketmq.nameserver, "-o", "json").json()
    said = rocketmq.admin("consumerProgress", "-g", group)
    of_mqadmin = int(re.findall(r"Diff Total: (\d+)", said)[0])
    of_topic = [line.split() for line in said.splitlines() if line.startswith(topic[:30])]
    offsets = rmqd("offsets", "show", group, topic, "-n", rocketmq.nameserver, "-o", "json").json()
    table = rmqd("offsets", "show", group, "-n", rocketmq.nameserver)
    assert (entry["members"], entry["consume_type"], entry["lag"]) == (0, None, of_mqadmin)
    ends = {int(row[2]): (int(row[3]), int(row[4])) for row in of_topic}  # 0 if there is no offset
    assert {one["queue"]: (one["max"], one["committed"] or 0) for one in offsets} == ends
    assert re.search(rf"^{topic} +broker-a +1 +2 +0 +2 +0 +0s$", table.out, re.MULTILINE), table.out
    assert {queue["owner"] for queue in shown["queues"]} == {""}
    committed = {queue["queue"]: queue["committed"] for queue in shown["queues"] if queue["topic"] == topic}
    assert (committed[0], committed[1]) == (1, 2)


@pytest.mark.process
def test_an_unknown_group_and_an_unreachable_cluster_are_errors(rocketmq: RealCluster, group: str) -> None:
    unknown = rmqd("groups", "show", group, "-n", rocketmq.nameserver)
    assert (unknown.code, unknown.out) == (1, "")
    assert unknown.err == f"rmqd: no broker knows group {group}; run `rmqd groups list` to see all\n"
    for command in (
        ("groups", "list"), ("groups", "show", group), ("groups", "mode", group, "t", "pop", "--yes"),
        ("topics", "list"), ("topics", "show", "t"), ("offsets", "show", group), ("offsets", "show", group, "t"),
        ("message", "get", "x"), ("message", "query", "t", "k"),
    ):  # fmt: skip
        assert rmqd(*command, "-n", "127.0.0.1:1").code == 69, command


@pytest.mark.process
def test_a_consume_mode_is_set_only_after_confirmation(rocketmq: RealCluster, topic: str, group: str) -> None:
    """Nothing is set by `--dry-run`, or without `--yes` if there is no terminal for the question."""
    if rocketmq.spec.version != release.EMBEDDED and rocketmq.spec.version.startswith("4."):
        pytest.skip("RocketMQ 4 knows no POP")
    commit(rocketmq, group, topic, {0: 0})
    command = "groups", "mode", group, topic, "pop", "-n", rocketmq.nameserver

    def modes() -> dict[str, str]:
        shown = rmqd("groups", "show", group, "-n", rocketmq.nameserver, "-o", "json").json()
        found = shown["brokers"]["broker-a"]["modes"]
        assert isinstance(found, dict)
        return found

    plan = f"{group}, {topic}:\nbroker-a: pull -> pop\n"
    dry, refused = rmqd(*command, "--dry-run"), rmqd(*command)
    assert (dry.code, dry.out) == (0, plan)
    assert (refused.code, refused.out) == (1, plan)
    assert "--yes" in refused.err
    planned = rmqd(*command, "--dry-run", "-o", "json")
    assert planned.json() == [{"broker": "broker-a", "was": "pull", "mode": "pop", "share_queues": 0, "error": None}]
    assert modes() == {}

    done = rmqd(*command, "--yes")
    assert (done.code, done.out) == (0, f"{plan}set on broker-a\n")
    assert modes() == {topic: "pop"}
    again = rmqd(*command, "--yes", "-o", "json")
    assert again.json() == [{"broker": "broker-a", "was": "pop", "mode": "pop", "share_queues": 0, "error": None}]
    shared = rmqd(*command, "--share-queues", "2", "--yes")
    assert shared.out.endswith("broker-a: pop -> pop, each queue shared by 2\nset on broker-a\n")

    back = rmqd(*(word if word != "pop" else "pull" for word in command), "--yes")
    assert back.code == 0, back.err
    assert modes() == {topic: "pull"}


@pytest.mark.process
def test_the_plan_of_a_mode_says_that_no_broker_knows_the_group(rocketmq: RealCluster, topic: str, group: str) -> None:
    """The name may be misspelt, or the group may start later."""
    if rocketmq.spec.version != release.EMBEDDED and rocketmq.spec.version.startswith("4."):
        pytest.skip("RocketMQ 4 knows no POP")
    ended = rmqd("groups", "mode", group, topic, "pop", "--dry-run", "-n", rocketmq.nameserver)
    unknown = f"no broker knows group {group} yet: this prepares it; see `rmqd groups list`"
    assert (ended.code, ended.out) == (0, f"{group}, {topic}:\n{unknown}\nbroker-a: pull -> pop\n")


@pytest.mark.process
async def test_a_group_pops_after_its_mode_was_set_to_pop(rocketmq: RealCluster, topic: str, group: str) -> None:
    """`consume_mode: pop` needs no mqadmin."""
    if rocketmq.spec.version.startswith("4."):
        pytest.skip("RocketMQ 4 knows no POP")
    ended = await ask("groups", "mode", group, topic, "pop", "--yes", "-n", rocketmq.nameserver)
    assert ended.code == 0, ended.err
    seen = Seen()
    options: dict[str, Any] = {"group": group, "subscriptions": [topic], "consume_from_where": "first_offset"}
    async with member(rocketmq.nameserver, seen, consume_mode="pop", **options) as m:
        await eventually(lambda: any(queue.popped for queue in m.consumer.snapshot().queues), "the group pops")
        await asyncio.to_thread(send, rocketmq, topic, 3)
        await eventually(lambda: len(seen.keys) == 3, "all messages are handled")
