"""What the name server's side tells, in the words of a RocketMQ 5.5.0."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rmqd.broker.embedded import EmbeddedOptions
from rmqd.broker.settings import BrokerSettings
from rmqd.wire.bodies.cluster import TopicList
from rmqd.wire.bodies.route import QueueData, TopicRouteData
from tests.broker.asking import Asking, asking, body, told
from tests.broker.peer import connected
from tests.rocketmq.spec import free_port

PUT_KV, GET_KV, DELETE_KV, KV_LIST = 100, 101, 102, 219
CLUSTER_INFO, ALL_TOPICS, TOPICS_OF_CLUSTER, SYSTEM_TOPICS = 106, 206, 224, 304
WIPE_WRITE_PERM, ADD_WRITE_PERM, DELETE_TOPIC, REGISTER_TOPIC = 205, 327, 216, 217
UNIT_TOPICS, UNIT_SUB_TOPICS, UNIT_SUB_UNUNIT_TOPICS = 311, 312, 313
UPDATE_CONFIG, GET_CONFIG = 318, 319
NO_ROUTE = (
    17,
    "No topic route info in name server for the topic: {}\n"
    "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.",
)


@pytest.fixture
async def mq() -> AsyncIterator[Asking]:
    """With the topic T of two queues."""
    async with asking(EmbeddedOptions(topics={"T": 2})) as connections:
        yield connections


def no_route(topic: str) -> tuple[int, str]:
    return NO_ROUTE[0], NO_ROUTE[1].format(topic)


async def perm(mq: Asking, topic: str) -> int:
    return TopicRouteData.from_json((await mq.route(topic)).body).queue_datas[0].perm


async def topics(mq: Asking, code: int, **fields: str) -> set[str]:
    return set(TopicList.from_json((await mq.name_server.call(code, fields)).body).topics)


async def test_route_is_strict_json_only_for_those_who_want_it(mq: Asking) -> None:
    """Since 4.9.4, which is version 401, or where a client says so."""
    address = mq.rocketmq.broker.address
    strict = (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"%b"},"brokerName":"broker-a","cluster":"DefaultCluster",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":2}]}'
    ) % address.encode()
    loose = strict.replace(b'"0"', b"0")

    assert (await mq.route("T", version=401)).body == strict
    assert (await mq.route("T", version=400)).body == loose
    asked = {"topic": "T", "acceptStandardJsonOnly": "true"}
    assert (await mq.name_server.call(105, asked, version=0)).body == strict


async def test_unknown_topic_and_no_topic_have_no_route(mq: Asking) -> None:
    assert told(await mq.route("nope")) == no_route("nope")
    assert told(await mq.name_server.call(105)) == no_route("null")


async def test_cluster_is_told_in_the_loose_dialect_whatever_the_version(mq: Asking) -> None:
    expected = (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"%b"},"brokerName":"broker-a","cluster":"DefaultCluster",'
        b'"enableActingMaster":false}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
    ) % mq.rocketmq.broker.address.encode()

    for version in (0, 513):
        assert (await mq.name_server.call(CLUSTER_INFO, version=version)).body == expected


async def test_lists_of_topics(mq: Asking) -> None:
    await mq.create("UNIT", topic_sys_flag=1)
    await mq.create("SUB", topic_sys_flag=2)
    await mq.create("BOTH", topic_sys_flag=3)

    assert {"T", "TBW102", "BenchmarkTest", "broker-a", "DefaultCluster"} <= await topics(mq, ALL_TOPICS)
    assert await topics(mq, TOPICS_OF_CLUSTER, cluster="DefaultCluster") == await topics(mq, ALL_TOPICS)
    assert await topics(mq, TOPICS_OF_CLUSTER, cluster="nope") == set()
    assert await topics(mq, TOPICS_OF_CLUSTER) == set()
    assert await topics(mq, UNIT_TOPICS) == {"UNIT", "BOTH"}
    assert await topics(mq, UNIT_SUB_TOPICS) == {"SUB", "BOTH"}
    assert await topics(mq, UNIT_SUB_UNUNIT_TOPICS) == {"SUB"}
    system = TopicList.from_json((await mq.name_server.call(SYSTEM_TOPICS)).body)
    assert set(system.topics) == {"DefaultCluster", "broker-a"}
    assert system.broker_addr == mq.rocketmq.broker.address


async def test_keys_and_values(mq: Asking) -> None:
    ns = mq.name_server
    place = {"namespace": "N", "key": "k"}
    assert told(await ns.call(GET_KV, place)) == (22, "No config item, Namespace: N Key: k")
    assert told(await ns.call(KV_LIST, {"namespace": "N"})) == (22, "No config item, Namespace: N")

    assert told(await ns.call(PUT_KV, {**place, "value": "v"})) == (0, None)
    assert (await ns.call(GET_KV, place)).ext_fields == {"value": "v"}
    assert body(await ns.call(KV_LIST, {"namespace": "N"})) == {"table": {"k": "v"}}

    assert told(await ns.call(DELETE_KV, place)) == (0, None)
    assert told(await ns.call(DELETE_KV, place)) == (0, None)
    assert told(await ns.call(GET_KV, place)) == (22, "No config item, Namespace: N Key: k")
    assert body(await ns.call(KV_LIST, {"namespace": "N"})) == {"table": {}}


async def test_keys_and_values_are_not_kept_without_end(mq: Asking) -> None:
    """Anybody may put them; what is there may still be changed."""
    ns = mq.name_server
    place = {"namespace": "N", "key": "0"}
    too_long = "x" * (64 * 1024)
    assert told(await ns.call(PUT_KV, {**place, "value": too_long})) == (
        1,
        "a key and its value have at most 65536 characters",
    )
    for number in range(1000):
        assert told(await ns.call(PUT_KV, {**place, "key": str(number), "value": "v"})) == (0, None)

    assert told(await ns.call(PUT_KV, {**place, "key": "1000", "value": "v"})) == (1, "at most 1000 keys are kept")
    assert told(await ns.call(PUT_KV, {**place, "namespace": "M", "value": "v"})) == (1, "at most 1000 keys are kept")
    assert told(await ns.call(PUT_KV, {**place, "value": "changed"})) == (0, None)
    assert (await ns.call(GET_KV, place)).ext_fields == {"value": "changed"}


async def test_keys_and_values_survive_with_a_data_dir(tmp_path: Path) -> None:
    options = EmbeddedOptions(data_dir=tmp_path)
    async with asking(options) as mq:
        await mq.name_server.call(PUT_KV, {"namespace": "N", "key": "k", "value": "v"})
        await mq.name_server.call(PUT_KV, {"namespace": "N", "key": "gone", "value": "v"})
        await mq.name_server.call(DELETE_KV, {"namespace": "N", "key": "gone"})
    async with asking(options) as mq:
        assert body(await mq.name_server.call(KV_LIST, {"namespace": "N"})) == {"table": {"k": "v"}}


async def test_value_is_durable_once_it_is_acknowledged(tmp_path: Path) -> None:
    """What is on the disk at that moment, as kill -9 leaves it, has it."""
    as_killed = tmp_path / "as killed"
    async with asking(EmbeddedOptions(data_dir=tmp_path / "running")) as mq:
        await mq.name_server.call(PUT_KV, {"namespace": "N", "key": "k", "value": "v"})
        shutil.copytree(tmp_path / "running", as_killed)
    async with asking(EmbeddedOptions(data_dir=as_killed)) as mq:
        assert body(await mq.name_server.call(KV_LIST, {"namespace": "N"})) == {"table": {"k": "v"}}


async def test_order_of_a_topic_is_told_only_where_that_is_switched_on(mq: Asking) -> None:
    value = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:2"}
    await mq.name_server.call(PUT_KV, value)
    assert "orderTopicConf" not in body(await mq.route("T"))

    await mq.name_server.call(UPDATE_CONFIG, body=b"orderMessageEnable=true\n")
    assert body(await mq.route("T"))["orderTopicConf"] == "broker-a:2"


async def test_write_permission_is_wiped_until_the_broker_changes_the_topic(mq: Asking) -> None:
    count = len(await topics(mq, ALL_TOPICS))
    wiped = await mq.name_server.call(WIPE_WRITE_PERM, {"brokerName": "broker-a"})
    assert wiped.ext_fields == {"wipeTopicCount": str(count)}
    assert await perm(mq, "T") == 4

    await mq.create("NEW")
    assert await perm(mq, "NEW") == 6
    await mq.create("T", 2)
    assert await perm(mq, "T") == 4  # nothing changed, so nothing is registered
    await mq.create("T", 3)
    assert await perm(mq, "T") == 6

    assert await perm(mq, "TBW102") == 5
    added = await mq.name_server.call(ADD_WRITE_PERM, {"brokerName": "broker-a"})
    assert added.ext_fields == {"addTopicCount": str(count + 1)}
    assert await perm(mq, "TBW102") == 6
    other = await mq.name_server.call(WIPE_WRITE_PERM, {"brokerName": "nope"})
    assert other.ext_fields == {"wipeTopicCount": "0"}


async def test_topic_is_off_the_name_server_until_the_broker_changes_it(mq: Asking) -> None:
    await mq.name_server.call(DELETE_TOPIC, {"topic": "T", "clusterName": "other"})
    assert (await mq.route("T")).code == 0
    await mq.name_server.call(DELETE_TOPIC, {"topic": "T", "clusterName": "DefaultCluster"})
    assert told(await mq.route("T")) == no_route("T")
    assert "T" not in await topics(mq, ALL_TOPICS)

    await mq.create("T", 5)
    assert (await mq.route("T")).code == 0


async def test_topic_that_is_told_to_the_name_server_alone(mq: Asking) -> None:
    route = TopicRouteData((QueueData("broker-a", 1, 1, 6), QueueData("unknown", 1, 1, 6)), ())
    await mq.name_server.call(REGISTER_TOPIC, {"topic": "R"}, route.to_json())
    assert TopicRouteData.from_json((await mq.route("R")).body).queue_datas == (QueueData("broker-a", 1, 1, 6),)

    unknown = TopicRouteData((QueueData("unknown", 1, 1, 6),), ())
    await mq.name_server.call(REGISTER_TOPIC, {"topic": "R2"}, unknown.to_json())
    assert told(await mq.route("R2")) == no_route("R2")


async def test_permission_of_the_broker_holds_for_its_topics() -> None:
    async with asking(EmbeddedOptions(settings=BrokerSettings(brokerPermission=4), topics={"T": 1})) as mq:
        assert await perm(mq, "T") == 4


async def test_settings(mq: Asking) -> None:
    ns = mq.name_server
    refused = (16, "Can not update config in black list.")
    assert told(await ns.call(UPDATE_CONFIG, body=b"kvConfigPath=/tmp\n")) == refused
    assert told(await ns.call(UPDATE_CONFIG, body=b"noSetting=1\nenableTopicList=false\n")) == (0, None)
    assert b"enableTopicList=false\n" in (await ns.call(GET_CONFIG)).body
    for code in (TOPICS_OF_CLUSTER, UNIT_TOPICS, UNIT_SUB_TOPICS, UNIT_SUB_UNUNIT_TOPICS):
        assert told(await ns.call(code, {"cluster": "DefaultCluster"})) == (1, "disable")

    await ns.call(UPDATE_CONFIG, body=b"enableAllTopicList=no\n")  # what is not true is false
    assert told(await ns.call(ALL_TOPICS)) == (1, "disable")


@pytest.mark.parametrize("code", [103, 104, 322, 904, 34, 9999])
async def test_what_is_not_done_is_refused(mq: Asking, code: int) -> None:
    """Also other brokers, which this name server does not take up."""
    assert told(await mq.name_server.call(code)) == (3, f" request type {code} not supported")


async def test_broker_with_a_named_port_listens_two_below_too() -> None:
    port = free_port(set(), (-2, 0))
    async with asking(EmbeddedOptions(broker_port=port, topics={"T": 1})) as mq:
        assert mq.rocketmq.broker.address == f"127.0.0.1:{port}"
        sent = await mq.broker.send("T")
        assert sent.code == 0
        async with connected(f"127.0.0.1:{port - 2}") as vip:
            assert (await vip.call(30, {"topic": "T", "queueId": "0"})).ext_fields == {"offset": "1"}
