"""Pulls from the embedded broker: checks, filters and statistics. Codes and remarks are the real broker's.

The core of these tests is in tests/broker/test_pull.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, TopicConfig
from rmqd.wire.bodies.heartbeat_data import (
    CheckClientRequestBody,
    MessageModel,
    SubscriptionData,
    java_hash,
)
from rmqd.wire.command import RemotingCommand
from tests.broker.peer import Peer
from tests.broker.test_pull import CHECK, LITE_PULL, bodies, pull, summary


async def test_the_forbidden_type_names_the_reason_of_a_rejected_pull(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    broker = embedded.broker
    everyone = broker.settings
    broker.change_settings(replace(everyone, brokerPermission=2, litePullMessageEnable=False))
    assert summary(await pull(peer)) == (
        16,
        "the broker[127.0.0.1] pulling message is forbidden",
        {"forbiddenType": "1"},
    )
    broker.change_settings(replace(everyone, litePullMessageEnable=False))
    remark = "the broker[127.0.0.1] for lite pull consumer is forbidden"
    assert summary(await pull(peer, LITE_PULL)) == (16, remark, {"forbiddenType": "1"})
    assert (await pull(peer)).code == 19

    broker.groups.put(SubscriptionGroupConfig(group_name="off", consume_enable=False))
    remark = "subscription group no permission, off"
    assert summary(await pull(peer, consumerGroup="off", topic="none")) == (16, remark, {"forbiddenType": "2"})

    broker.topics.put(TopicConfig(topic_name="writeonly", perm=2))
    remark = "the topic[writeonly] pulling message is forbidden"
    assert summary(await pull(peer, topic="writeonly", queueId=99)) == (16, remark, {"forbiddenType": "3"})

    broker.groups.put(SubscriptionGroupConfig(group_name="alone", consume_broadcast_enable=False))
    await peer.heartbeat("alone", [SubscriptionData("T")], MessageModel.BROADCASTING)
    remark = "the consumer group[alone] can not consume by broadcast way"
    assert summary(await pull(peer, consumerGroup="alone", sysFlag=0)) == (16, remark, {"forbiddenType": "4"})

    broker.groups.forbid_reading("out", "T")
    await peer.heartbeat("out", [SubscriptionData("T")])
    remark = "the consumer group[out] is forbidden for topic[T]"
    assert summary(await pull(peer, consumerGroup="out", sysFlag=0)) == (16, remark, {"forbiddenType": "5"})


async def test_a_broadcasting_member_pulls_like_other_members(peer: Peer) -> None:
    for number in range(2):
        await peer.send("T", b"%d" % number)
    await peer.heartbeat("g", [SubscriptionData("T")], MessageModel.BROADCASTING)
    assert bodies(await pull(peer, sysFlag=0, queueOffset=1)) == [b"1"]


async def test_tags_are_distinguished_only_by_their_hashes(peer: Peer) -> None:
    assert java_hash("AaAa") == java_hash("BBBB")
    for tag in ("AaAa", "BBBB", "other"):
        await peer.send("T", tag.encode(), TAGS=tag)
    assert bodies(await pull(peer, subscription="AaAa")) == [b"AaAa", b"BBBB"]


async def test_an_invalid_condition_is_rejected_in_heartbeats_but_ignored_in_pulls(peer: Peer) -> None:
    await peer.send("T")
    await peer.heartbeat("g", [SubscriptionData("T", "price >", expression_type="SQL92")])
    remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
    assert summary(await pull(peer, sysFlag=0)) == (27, remark, {})
    # the real broker logs the error and returns all messages
    assert (await pull(peer, subscription="price >", expressionType="SQL92")).code == 0


async def test_conditions_can_be_switched_off(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    embedded.broker.change_settings(replace(embedded.broker.settings, enablePropertyFilter=False))
    remark = "The broker does not support consumer to filter message by SQL92"
    assert summary(await pull(peer, subscription="a = 1", expressionType="SQL92")) == (1, remark, {})
    assert summary(await check(peer, "a = 1")) == (1, remark, {})
    assert (await check(peer, "A", "TAG")).code == 0


@pytest.mark.parametrize(
    ("expression", "kind", "expected"),
    [
        ("a = 1", "SQL92", (0, None, {})),
        ("A || B", "TAG", (0, None, {})),
        ("a = NULL", "SQL92", (23, "NULL cannot be compared; expected IS NULL", {})),
    ],
)
async def test_a_client_can_check_a_subscription(
    peer: Peer, expression: str, kind: str, expected: tuple[int, str | None, dict[str, str]]
) -> None:
    assert summary(await check(peer, expression, kind)) == expected


async def test_an_empty_check_succeeds_and_one_of_an_unknown_type_fails(peer: Peer) -> None:
    assert (await peer.call(CHECK)).code == 0
    reply = await check(peer, "a", "XPATH")
    assert (reply.code, reply.remark) == (23, "unknown type of expression 'XPATH'; expected TAG or SQL92")


async def check(peer: Peer, expression: str, kind: str = "SQL92") -> RemotingCommand:
    subscription = SubscriptionData("T", expression, expression_type=kind)
    return await peer.call(CHECK, {}, CheckClientRequestBody("peer", "g", subscription).to_json())


async def test_the_pull_offset_of_the_group_is_recorded(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    for _ in range(3):
        await peer.send("T")
    await pull(peer, maxMsgNums=2)
    assert embedded.broker.offsets.pulled_offset("g", "T", 0) == 2


async def test_pulled_messages_and_misses_are_counted(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    for _ in range(3):
        await peer.send("T")
    await pull(peer, maxMsgNums=2)
    await pull(peer, queueOffset=3)
    stats = embedded.broker.stats
    assert (stats.gets.messages, stats.get_misses.messages) == (2, 1)


@pytest.mark.parametrize("queue_id", [-1, 4])
async def test_a_pull_from_a_missing_queue_is_rejected(peer: Peer, queue_id: int) -> None:
    reply = await pull(peer, queueId=queue_id)
    assert (reply.code, reply.ext_fields) == (29, {})
    start = f"queueId[{queue_id}] is illegal, topic:[T] topicConfig.readQueueNums:[4] consumer:[/127.0.0.1:"
    assert reply.remark is not None
    assert reply.remark.startswith(start)


async def test_a_pull_without_a_required_field_is_rejected(peer: Peer) -> None:
    reply = await pull(peer, queueOffset=None)
    assert reply.code == 1
    assert reply.remark is not None
    assert "queueOffset" in reply.remark
