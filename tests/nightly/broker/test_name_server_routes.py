"""Responses of the name server, with the remarks of RocketMQ 5.5.0: routes, keys and permissions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions
from rmqd.wire.bodies.route_data import TopicList, TopicRouteData
from tests.broker.peer import connected
from tests.nightly.broker.asking import Asking, asking, body, told
from tests.rocketmq.spec import free_port

PUT_KV, GET_KV, DELETE_KV, KV_LIST = 100, 101, 102, 219
CLUSTER_INFO, ALL_TOPICS, TOPICS_OF_CLUSTER, SYSTEM_TOPICS = 106, 206, 224, 304
WIPE_WRITE_PERM, ADD_WRITE_PERM, DELETE_TOPIC = 205, 327, 216
NO_ROUTE = (
    17,
    "No topic route info in name server for the topic: {}\n"
    "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.",
)


@pytest.fixture
async def mq() -> AsyncIterator[Asking]:
    """An embedded RocketMQ with the topic T of two queues."""
    async with asking(EmbeddedOptions(topics={"T": 2})) as connections:
        yield connections


def no_route(topic: str) -> tuple[int, str]:
    return NO_ROUTE[0], NO_ROUTE[1].format(topic)


async def perm(mq: Asking, topic: str) -> int:
    return TopicRouteData.from_json((await mq.route(topic)).body).queue_datas[0].perm


async def topics(mq: Asking, code: int, **fields: str) -> set[str]:
    return set(TopicList.from_json((await mq.name_server.call(code, fields)).body).topics)


async def test_the_route_is_strict_json_only_for_clients_that_want_it(mq: Asking) -> None:
    """Clients of version 401 (4.9.4) and later, and clients that request it."""
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


async def test_an_unknown_or_missing_topic_has_no_route(mq: Asking) -> None:
    assert told(await mq.route("nope")) == no_route("nope")
    assert told(await mq.name_server.call(105)) == no_route("null")


async def test_the_cluster_info_is_loose_json_for_every_version(mq: Asking) -> None:
    expected = (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"%b"},"brokerName":"broker-a","cluster":"DefaultCluster",'
        b'"enableActingMaster":false}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
    ) % mq.rocketmq.broker.address.encode()

    for version in (0, 513):
        assert (await mq.name_server.call(CLUSTER_INFO, version=version)).body == expected


async def test_keys_and_values_are_stored_and_deleted(mq: Asking) -> None:
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


async def test_write_permission_is_wiped_until_the_broker_changes_the_topic(mq: Asking) -> None:
    count = len(await topics(mq, ALL_TOPICS))
    wiped = await mq.name_server.call(WIPE_WRITE_PERM, {"brokerName": "broker-a"})
    assert wiped.ext_fields == {"wipeTopicCount": str(count)}
    assert await perm(mq, "T") == 4

    await mq.create("NEW")
    assert await perm(mq, "NEW") == 6
    await mq.create("T", 2)
    assert await perm(mq, "T") == 4  # without a change the broker does not register the topic
    await mq.create("T", 3)
    assert await perm(mq, "T") == 6

    assert await perm(mq, "TBW102") == 5
    added = await mq.name_server.call(ADD_WRITE_PERM, {"brokerName": "broker-a"})
    assert added.ext_fields == {"addTopicCount": str(count + 1)}
    assert await perm(mq, "TBW102") == 6
    other = await mq.name_server.call(WIPE_WRITE_PERM, {"brokerName": "nope"})
    assert other.ext_fields == {"wipeTopicCount": "0"}


async def test_a_topic_deleted_at_the_name_server_returns_when_the_broker_changes_it(mq: Asking) -> None:
    await mq.name_server.call(DELETE_TOPIC, {"topic": "T", "clusterName": "other"})
    assert (await mq.route("T")).code == 0
    await mq.name_server.call(DELETE_TOPIC, {"topic": "T", "clusterName": "DefaultCluster"})
    assert told(await mq.route("T")) == no_route("T")
    assert "T" not in await topics(mq, ALL_TOPICS)

    await mq.create("T", 5)
    assert (await mq.route("T")).code == 0


async def test_a_broker_with_a_given_port_also_listens_on_the_vip_port() -> None:
    port = free_port(set(), (-2, 0))
    async with asking(EmbeddedOptions(broker_port=port, topics={"T": 1})) as mq:
        assert mq.rocketmq.broker.address == f"127.0.0.1:{port}"
        sent = await mq.broker.send("T")
        assert sent.code == 0
        async with connected(f"127.0.0.1:{port - 2}") as vip:
            assert (await vip.call(30, {"topic": "T", "queueId": "0"})).ext_fields == {"offset": "1"}
