"""Commands that query a cluster: topics, groups, offsets, lag, diagnose; on the embedded broker, in this process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from rmqd.wire.command import version_name
from tests.cli.cluster import Cluster
from tests.cli.in_process import rmqd
from tests.consumer.members import member
from tests.seen import Seen
from tests.waiting import eventually


def test_topics_are_listed_and_shown(cluster: Cluster) -> None:
    cluster.fill("shown_topic", 3)
    cluster.commit("shown_topic_group", "shown_topic", 1)
    every, some = ({one["topic"]: one for one in cluster.json("topics", "list", *more)} for more in (["--all"], []))
    entry = some["shown_topic"]
    assert (entry["queues"], entry["permissions"], entry["brokers"]) == (4, "rw", ["broker-a"])
    assert {"SCHEDULE_TOPIC_XXXX", "TBW102", "broker-a", "DefaultCluster"} <= every.keys() - some.keys()
    assert not [name for name in some if name.startswith(("%", "rmq_sys", "RMQ_SYS"))]

    shown = cluster.json("topics", "show", "shown_topic")
    queues = [(one["broker"], one["queue"], one["min"], one["max"]) for one in shown["queues"]]
    assert queues == [("broker-a", number, 0, 3) for number in range(4)]
    assert (shown["messages"], shown["groups"]) == (12, ["shown_topic_group"])
    assert shown["brokers"]["broker-a"]["read_queues"] == 4
    table = cluster.ask("topics", "show", "shown_topic")
    assert table.out.startswith("shown_topic  12 messages in 4 queues\n")
    assert table.out.endswith("read by shown_topic_group\n")


async def test_a_group_is_listed_and_shown_with_its_member_and_offsets(cluster: Cluster) -> None:
    cluster.fill("shown", 4, tags="a")
    seen = Seen()
    options: dict[str, Any] = {"group": "mailer", "subscriptions": {"shown": "a || b"}}
    options |= {"consume_from_where": "first_offset", "persist_consumer_offset_interval_seconds": 0.05}
    async with member(cluster.nameserver, seen, **options) as one:
        await eventually(lambda: sum(cluster.offsets("mailer", "shown").values()) == 16, "all offsets are committed")
        client_id = one.client.client_id

        def ask() -> tuple[list[dict[str, Any]], dict[str, Any], str]:
            shown = cluster.json("groups", "show", "mailer")
            return cluster.json("groups", "list"), shown, cluster.ask("groups", "show", "mailer").out

        listed, shown, table = await asyncio.to_thread(ask)
    (entry,) = [one for one in listed if one["group"] == "mailer"]
    assert (entry["members"], entry["consume_type"], entry["message_model"]) == (1, "push", "clustering")
    assert (entry["lag"], entry["brokers"]) == (0, ["broker-a"])
    (shown_member,) = shown["members"]
    assert (shown_member["client_id"], shown_member["language"]) == (client_id, "PYTHON")
    assert (shown_member["version"], shown_member["queues"]) == ("5.5.0", 5)  # including the queue of the retry topic
    assert shown["subscriptions"]["shown"] == "a || b"
    of_topic = [queue for queue in shown["queues"] if queue["topic"] == "shown"]
    assert [(queue["broker"], queue["queue"], queue["owner"], queue["max"]) for queue in of_topic] == [
        ("broker-a", number, client_id, 4) for number in range(4)
    ]
    assert shown["brokers"]["broker-a"]["consume_enable"] is True
    assert table.startswith("mailer  push, clustering  1 member, 0 messages behind\n")
    assert re.search(rf"^shown +broker-a +0 +{re.escape(client_id)} +4 +4 +0 +0s$", table, re.MULTILINE), table


async def test_groups_show_lists_the_members_of_each_subscription(cluster: Cluster) -> None:
    cluster.fill("apart", 1)
    options: dict[str, Any] = {"group": "unlike", "persist_consumer_offset_interval_seconds": 0.05}
    async with (
        member(cluster.nameserver, Seen(), **options, subscriptions={"apart": "*"}) as one,
        member(cluster.nameserver, Seen(), **options, subscriptions={"apart": "paid"}) as other,
    ):
        ids = {"*": one.client.client_id, "paid": other.client.client_id}

        async def told() -> dict[str, str]:
            table = (await asyncio.to_thread(cluster.ask, "groups", "show", "unlike")).out
            return dict(re.findall(r"^apart +(\S+) +(\S+)$", table.partition("SUBSCRIPTION  MEMBERS")[2], re.MULTILINE))

        await eventually(lambda: _equals(told(), ids), "each subscription is shown with its member")


async def _equals(found: Awaitable[object], wanted: object) -> bool:
    return await found == wanted


def test_lag_names_the_largest_queue(cluster: Cluster) -> None:
    cluster.fill("skewed", 10)
    cluster.commit("skewed_group", "skewed", 10, 2, 9, 9)
    lines = cluster.ask("lag", "skewed_group").out.splitlines()
    assert [line.partition("LARGEST QUEUE")[1] for line in lines] == ["LARGEST QUEUE", ""]
    assert re.search(r"^skewed_group +skewed +4 +10 .*  broker-a:1 has 80%$", lines[1]), lines


async def test_a_group_is_diagnosed(cluster: Cluster) -> None:
    cluster.fill("diagnosed", 4)
    options: dict[str, Any] = {
        "group": "ill",
        "subscriptions": {"diagnosed": "*"},
        "consume_from_where": "first_offset",
    }
    async with member(cluster.nameserver, Seen(), **options, persist_consumer_offset_interval_seconds=0.05):
        await eventually(lambda: sum(cluster.offsets("ill", "diagnosed").values()) == 16, "all offsets are committed")
        well = await asyncio.to_thread(cluster.json, "diagnose", "ill")
    assert (well["healthy"], well["findings"]) == (True, [])
    cluster.fill("diagnosed", 1)
    ended = await asyncio.to_thread(cluster.ask, "diagnose", "ill", "-o", "json")
    assert ended.code == 1
    assert [finding["cause"] for finding in json.loads(ended.out)["findings"]] == ["no_members"]


def test_the_lag_of_a_group_without_members_is_shown(cluster: Cluster) -> None:
    cluster.fill("behind", 2)
    cluster.commit("nobodys", "behind", 1, 2)
    (entry,) = [one for one in cluster.json("groups", "list") if one["group"] == "nobodys"]
    assert (entry["members"], entry["consume_type"], entry["lag"]) == (0, None, 5)
    shown = cluster.json("groups", "show", "nobodys")
    assert [(one["committed"], one["owner"]) for one in shown["queues"] if one["topic"] == "behind"] == [
        (1, ""), (2, ""), (None, ""), (None, ""),
    ]  # fmt: skip
    offsets = cluster.json("offsets", "show", "nobodys", "behind")
    assert [(one["queue"], one["max"], one["committed"]) for one in offsets] == [
        (0, 2, 1), (1, 2, 2), (2, 2, None), (3, 2, None),
    ]  # fmt: skip
    table = cluster.ask("offsets", "show", "nobodys")
    assert re.search(r"^behind +broker-a +1 +2 +0 +2 +0 +0s$", table.out, re.MULTILINE), table.out


def test_lag_reads_the_configuration_and_exits_with_1_above_the_limit(cluster: Cluster) -> None:
    cluster.fill("late", 4)
    cluster.commit("later", "late", 4, 4, 4, 3)
    Path("rmqd.yaml").write_text(
        f"nameserver: {cluster.nameserver}\n"
        'groups: {later: {subscriptions: {late: "*"}, handler: {plugin: log}}}\n'
    )
    here = "lag", "-c", "rmqd.yaml"
    (document,) = rmqd(*here, "-o", "json").json()
    assert (document["group"], document["topic"], document["lag"]) == ("later", "late", 1)
    assert 0 < document["lag_seconds"] < 60
    assert [(one["lag"], one["committed"]) for one in document["queues"]] == [(0, 4)] * 3 + [(1, 3)]
    assert rmqd(*here, "--fail-over", "1h").code == 0
    late = rmqd(*here, "--fail-over", "1ms")
    assert late.code == 1
    assert late.err.startswith("rmqd: later, late: the oldest waiting message is ")

    cluster.commit("later", "late", 4, 4, 4, 4)
    table = cluster.ask("lag", "later")  # without the configuration
    assert (table.code, table.out.splitlines()[1].split()) == (0, ["later", "late", "4", "0", "0s", "-"])
    config = Path("rmqd.yaml")
    config.write_text(config.read_text().replace('late: "*"', 'late: "*", absent: "*"'))
    some = rmqd(*here, "-o", "json")
    assert (some.code, [one["topic"] for one in some.json()]) == (1, ["late"])
    assert "later, absent: no route" in some.err


def test_only_released_versions_are_shown_by_name() -> None:
    named = {513: "5.5.0", 475: "5.3.1", 413: "5.0.0", 407: "4.9.7", 0: "0", 412: "412", 613: "613", -1: "-1"}
    assert {number: version_name(number) for number in named} == named


def test_diagnose_does_not_send_the_operator_to_the_wrong_daemon(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The asked daemon has another member of the group than the member with the problem."""
    problem = {"cause": "slow_handler", "evidence": "calls hang; the member is far@7", "next": "`rmqd restart late`"}
    far: dict[str, Any] = {"client_id": "far@7", "here": False}
    status: dict[str, Any] = {"members": [far], "problems": [problem], "queues": []}
    monkeypatch.setattr("rmqd.cli.diagnose_command._ask_daemon", lambda *_: status)
    cluster.fill("orders", 1)
    cluster.commit("late", "orders", 1)
    assert "`rmqd restart late --http HOST:PORT`" in cluster.ask("diagnose", "late", "--http", "127.0.0.1:1").out
    status["members"] = None  # a daemon of another version
    assert "`rmqd restart late --http HOST:PORT`" in cluster.ask("diagnose", "late", "--http", "127.0.0.1:1").out
    far["here"], status["members"] = True, [{"client_id": "other@7", "here": False}, far]
    assert "`rmqd restart late --http 127.0.0.1:1`" in cluster.ask("diagnose", "late", "--http", "127.0.0.1:1").out
