"""Responses of the name server, with the remarks of RocketMQ 5.5.0.

The core of these tests is in test_name_server_routes.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions
from rmqd.wire.bodies.route_data import TopicList
from tests.nightly.broker.asking import Asking, asking, body, told
from tests.nightly.broker.test_name_server_routes import (
    ALL_TOPICS,
    DELETE_KV,
    GET_KV,
    KV_LIST,
    PUT_KV,
    SYSTEM_TOPICS,
    TOPICS_OF_CLUSTER,
    mq,
    perm,
    topics,
)

__all__ = ["mq"]


UPDATE_CONFIG, GET_CONFIG = 318, 319


async def test_lists_of_topics(mq: Asking) -> None:
    assert {"T", "TBW102", "BenchmarkTest", "broker-a", "DefaultCluster"} <= await topics(mq, ALL_TOPICS)
    assert await topics(mq, TOPICS_OF_CLUSTER, cluster="DefaultCluster") == await topics(mq, ALL_TOPICS)
    assert await topics(mq, TOPICS_OF_CLUSTER, cluster="nope") == set()
    assert await topics(mq, TOPICS_OF_CLUSTER) == set()
    system = TopicList.from_json((await mq.name_server.call(SYSTEM_TOPICS)).body)
    assert set(system.topics) == {"DefaultCluster", "broker-a"}
    assert system.broker_addr == mq.rocketmq.broker.address


async def test_the_number_and_size_of_keys_are_limited(mq: Asking) -> None:
    """Any client may put keys. Existing keys can still be changed. One of the keys is the cluster's id."""
    ns = mq.name_server
    place = {"namespace": "N", "key": "0"}
    too_long = "x" * (64 * 1024)
    assert told(await ns.call(PUT_KV, {**place, "value": too_long})) == (
        1,
        "the key or its value is too long; expected at most 65536 characters",
    )
    for number in range(999):
        assert told(await ns.call(PUT_KV, {**place, "key": str(number), "value": "v"})) == (0, None)

    assert told(await ns.call(PUT_KV, {**place, "key": "999", "value": "v"})) == (
        1,
        "the name server stores at most 1000 keys",
    )
    assert told(await ns.call(PUT_KV, {**place, "namespace": "M", "value": "v"})) == (
        1,
        "the name server stores at most 1000 keys",
    )
    assert told(await ns.call(PUT_KV, {**place, "value": "changed"})) == (0, None)
    assert (await ns.call(GET_KV, place)).ext_fields == {"value": "changed"}


async def test_keys_and_values_survive_a_restart_with_a_data_dir(tmp_path: Path) -> None:
    options = EmbeddedOptions(data_dir=tmp_path)
    async with asking(options) as mq:
        await mq.name_server.call(PUT_KV, {"namespace": "N", "key": "k", "value": "v"})
        await mq.name_server.call(PUT_KV, {"namespace": "N", "key": "gone", "value": "v"})
        await mq.name_server.call(DELETE_KV, {"namespace": "N", "key": "gone"})
    async with asking(options) as mq:
        assert body(await mq.name_server.call(KV_LIST, {"namespace": "N"})) == {"table": {"k": "v"}}


async def test_a_value_is_durable_when_it_is_acknowledged(tmp_path: Path) -> None:
    """The files at that moment, as after kill -9, have it."""
    as_killed = tmp_path / "as killed"
    async with asking(EmbeddedOptions(data_dir=tmp_path / "running")) as mq:
        await mq.name_server.call(PUT_KV, {"namespace": "N", "key": "k", "value": "v"})
        shutil.copytree(tmp_path / "running", as_killed)
    async with asking(EmbeddedOptions(data_dir=as_killed)) as mq:
        assert body(await mq.name_server.call(KV_LIST, {"namespace": "N"})) == {"table": {"k": "v"}}


async def test_the_route_has_the_order_of_a_topic_only_if_enabled(mq: Asking) -> None:
    value = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:2"}
    await mq.name_server.call(PUT_KV, value)
    assert "orderTopicConf" not in body(await mq.route("T"))

    await mq.name_server.call(UPDATE_CONFIG, body=b"orderMessageEnable=true\n")
    assert body(await mq.route("T"))["orderTopicConf"] == "broker-a:2"


async def test_the_permission_of_the_broker_applies_to_its_topics() -> None:
    async with asking(EmbeddedOptions(settings=BrokerSettings(brokerPermission=4), topics={"T": 1})) as mq:
        assert await perm(mq, "T") == 4


async def test_settings_can_be_changed_except_the_blacklist(mq: Asking) -> None:
    ns = mq.name_server
    refused = (16, "Can not update config in black list.")
    assert told(await ns.call(UPDATE_CONFIG, body=b"kvConfigPath=/tmp\n")) == refused
    assert told(await ns.call(UPDATE_CONFIG, body=b"noSetting=1\nenableTopicList=false\n")) == (0, None)
    assert b"enableTopicList=false\n" in (await ns.call(GET_CONFIG)).body
    assert told(await ns.call(TOPICS_OF_CLUSTER, {"cluster": "DefaultCluster"})) == (1, "disable")

    await ns.call(UPDATE_CONFIG, body=b"enableAllTopicList=no\n")  # each value other than "true" is false
    assert told(await ns.call(ALL_TOPICS)) == (1, "disable")


@pytest.mark.parametrize("code", [103, 104, 322, 904, 34, 9999])
async def test_unsupported_requests_are_rejected(mq: Asking, code: int) -> None:
    """For example registrations of other brokers."""
    assert told(await mq.name_server.call(code)) == (3, f" request type {code} not supported")
