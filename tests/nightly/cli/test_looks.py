"""Commands that query a cluster (topics, groups, lag, messages), on the embedded broker, in this process.

The core of these tests is in tests/cli/test_looks.py.
"""

from __future__ import annotations

import asyncio
import base64
import json

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.config_bodies import TopicConfig, TopicConfigSerializeWrapper
from rmqd.wire.bodies.route_data import BrokerData, ClusterInfo
from rmqd.wire.topics import dlq_topic
from tests.cli.cluster import Cluster
from tests.cli.conftest import _as_on_a_machine_without_rmqd, cluster
from tests.cli.in_process import rmqd
from tests.client.peer import Peer, Reply

__all__ = ["_as_on_a_machine_without_rmqd", "cluster"]


def test_unknown_names_are_reported_and_not_created(cluster: Cluster) -> None:
    for words, told in (
        ("groups show absent", "rmqd: no broker knows group absent; run `rmqd groups list` to see all\n"),
        ("topics show absent", "rmqd: no broker has topic absent; run `rmqd topics list` to see all\n"),
        ("dlq show absent", "rmqd: absent has no dead letters; run `rmqd dlq list` to see the groups that have some\n"),
    ):
        ended = cluster.ask(*words.split())
        assert (ended.code, ended.out, ended.err) == (1, "", told)
    for words, told in (
        ("message get no-id", "no broker has a message with the id no-id"),
        ("message get 7F000001DA3C5F8D4BC40070B2E30001", "the id 7F000001DA3C5F8D4BC40070B2E30001"),
        ("tail absent", "absent"),
    ):
        ended = cluster.ask(*words.split())
        assert (ended.code, ended.out, told in ended.err) == (1, "", True), ended.err
    lag = cluster.ask("lag", "absent")
    assert (lag.code, "absent: it has no offset on any broker" in lag.err) == (1, True)
    assert not cluster.knows_group("absent")
    assert not cluster.has_topic("absent")


def test_a_message_is_found_by_either_id_and_by_key(cluster: Cluster) -> None:
    cluster.create_topic("found", 2)
    place = cluster.send("found", "für k1", keys="k1 k2", tags="a", properties={"p": "v"}, queue_id=1)
    cluster.send("found", b"\xff\x00", keys="k2", queue_id=0)
    (one,) = cluster.json("message", "get", place.msg_id)
    assert [one] == cluster.json("message", "get", place.msg_id, "--topic", "found")
    assert [one] == cluster.json("message", "get", place.offset_msg_id)
    assert (one["topic"], one["broker"], one["queue"], one["offset"]) == ("found", "broker-a", 1, 0)
    assert (one["body"], one["keys"], one["tags"], one["properties"]["p"]) == ("für k1", "k1 k2", "a", "v")
    lines = cluster.ask("message", "get", place.msg_id)
    assert "place:       found, broker-a, queue 1, offset 0\n" in lines.out
    assert lines.out.endswith("\nfür k1\n")
    raw = cluster.ask("message", "get", place.msg_id, "--raw")
    assert (raw.code, raw.out) == (0, "für k1")

    both = cluster.json("message", "query", "found", "k2")
    assert [one["body"] for one in both if "body" in one] == ["für k1"]
    assert [base64.b64decode(one["body_base64"]) for one in both if "body_base64" in one] == [b"\xff\x00"]
    table = cluster.ask("message", "query", "found", "k2")
    assert sorted(line.split()[-1] for line in table.out.splitlines()[1:]) == ["UTF-8)", "k1"]
    nothing = cluster.ask("message", "query", "found", "k4")
    assert (nothing.code, nothing.out) == (1, "")
    assert "no broker has a message of found with the key k4" in nothing.err

    cluster.create_topic(dlq_topic("poisoned"), 1)
    cluster.send(dlq_topic("poisoned"), "für k1", properties={"UNIQ_KEY": place.msg_id})
    copies = cluster.json("message", "get", place.msg_id)
    assert {one["topic"] for one in copies} == {"found", dlq_topic("poisoned")}


def test_tail_ends_after_the_given_number_of_matching_messages(cluster: Cluster) -> None:
    cluster.create_topic("followed", 1)
    for number in range(12):
        cluster.send("followed", "x", keys=f"m{number}", tags="abc"[number % 3])
    wanted = [f"m{number}" for number in range(12) if number % 3 != 1]
    for chosen in (("--tags", "a || c"), ("--sql", "TAGS <> 'b'")):
        ended = cluster.ask("tail", "followed", *chosen, "--since", "1h", "--most", "8", "-o", "json")
        assert ended.code == 0, ended.err
        assert [json.loads(line)["keys"] for line in ended.out.splitlines()] == wanted, chosen
    lines = cluster.ask("tail", "followed", "--since", "1h", "--most", "12").out.splitlines()
    assert [line.split()[5] for line in lines] == [f"m{number}" for number in range(12)]
    refused = cluster.ask("tail", "followed", "--sql", "amount >", "--since", "1h", "--most", "1")
    assert (refused.code, refused.out) == (1, "")
    assert "refuses the SQL filter 'amount >'" in refused.err


async def test_a_broker_that_refuses_does_not_hide_the_others() -> None:
    """Its error is printed next to the results of the others, and the exit code is 1."""
    table = TopicConfigSerializeWrapper({"orders": TopicConfig(topic_name="orders", read_queue_nums=4)})
    async with Peer() as good, Peer() as bad:
        brokers = {
            name: BrokerData("DefaultCluster", name, {0: peer.address})
            for name, peer in (("broker-a", good), ("broker-b", bad))
        }
        info = ClusterInfo(brokers, {"DefaultCluster": tuple(brokers)})
        good.on(RequestCode.GET_BROKER_CLUSTER_INFO, Reply(body=info.to_json()))
        good.on(RequestCode.GET_ALL_TOPIC_CONFIG, Reply(body=table.to_json()))
        bad.on(RequestCode.GET_ALL_TOPIC_CONFIG, Reply(code=ResponseCode.NO_PERMISSION, remark="not you"))
        ended = await asyncio.to_thread(rmqd, "topics", "list", "-n", good.address, "-o", "json")
    assert ended.code == 1
    assert [(one["topic"], one["queues"], one["brokers"]) for one in ended.json()] == [("orders", 4, ["broker-a"])]
    assert "broker-b: " in ended.err
    assert "not you" in ended.err
