"""Offsets of groups: commits, queries, copies and an operator's resets, as recorded from 5.5.0.

The core of these tests is in tests/broker/test_offsets.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.codes import LanguageCode
from rmqd.wire.bodies.group_bodies import ResetOffsetBody
from rmqd.wire.loose_json import loads
from rmqd.wire.message_queue import MessageQueue
from tests.broker.beats import beat, consumer
from tests.broker.peer import Peer
from tests.broker.test_offsets import (
    CLONE,
    QUEUES,
    RESET_MEMBER,
    UPDATE,
    commit,
    peer,
    push_resets,
    reset,
    rocketmq,
    stored,
    targets,
    texts,
)

__all__ = ["peer", "rocketmq"]


async def test_offsets_are_copied_to_another_group(peer: Peer) -> None:
    """They replace all of the group's offsets in the topic."""
    await commit(peer, 2)
    await peer.call(352, {"group": "other"})
    await commit(peer, 1, "other", queue=1)

    reply = await peer.call(CLONE, texts(srcGroup="g", destGroup="other", topic="T", offline="true"))

    assert reply.code == 0
    assert (await stored(peer, "other"), await stored(peer, "other", queue=1)) == (2, None)


async def test_offsets_of_a_topic_without_subscription_are_not_copied(peer: Peer) -> None:
    """If the source group is online, unless the request says that it is offline."""
    await commit(peer, 2)
    await commit(peer, 3, topic="T2")
    await beat(peer, "one", consumer("g", "T2"))

    await peer.call(CLONE, texts(srcGroup="g", destGroup="other", offline="false"))

    assert (await stored(peer, "other"), await stored(peer, "other", "T2")) == (None, 3)


@pytest.mark.parametrize(
    ("asked", "code", "remark"),
    [
        ({"topic": "never"}, 17, "Topic never does not exist"),
        ({"group": "never"}, 26, "Group never does not exist"),
        ({"group": None}, 26, "Group null does not exist"),
        ({"queueId": 0, "offset": 6}, 1, "Target offset 6 not in consume queue range [0-4]"),
        ({"queueId": 99, "offset": 3}, 1, "Target offset 3 not in consume queue range [0-0]"),
    ],
    ids=str,
)
async def test_an_invalid_reset_on_the_broker_is_rejected(peer: Peer, asked: Any, code: int, remark: str) -> None:
    reply = await reset(peer, **asked)

    assert (reply.code, reply.remark) == (code, remark)


async def test_a_reset_without_force_only_moves_offsets_back(rocketmq: EmbeddedRocketMQ, peer: Peer) -> None:
    await push_resets(rocketmq, peer)
    await beat(peer, "one", consumer())

    assert targets(await reset(peer, timestamp=-1, isForce="false")) == {0: 2, 1: 0, 2: 0, 3: 0}


async def test_the_pushed_reset_is_a_list_if_a_cpp_tool_requests_it(rocketmq: EmbeddedRocketMQ, peer: Peer) -> None:
    """The language of the requesting tool decides, not the members'. The response to the tool is always a map."""
    await push_resets(rocketmq, peer)
    await beat(peer, "one", consumer())

    reply = await reset(peer, LanguageCode.CPP)

    push = await peer.request(RESET_MEMBER)
    assert loads(push.body)["offsetTable"][0] == {"brokerName": "broker-a", "offset": 0, "queueId": 0, "topic": "T"}
    assert targets(push) == targets(reply) == dict.fromkeys(range(QUEUES), 0)
    assert b"[" not in reply.body


async def test_an_invalid_pushed_reset_is_rejected(rocketmq: EmbeddedRocketMQ, peer: Peer) -> None:
    await push_resets(rocketmq, peer)
    broker = rocketmq.broker

    async def refusal(**changed: Any) -> tuple[int, str | None]:
        reply = await reset(peer, **changed)
        return reply.code, reply.remark

    no_topic = "[reset-offset] reset offset failed, no topic in this broker. topic=never"
    assert await refusal(topic="never") == (17, no_topic)
    assert await refusal(group="never") == (1, "THe consumer group <never> not exist")
    offline = "Consumer not online, so can not reset offset, Group: g Topic: T Timestamp: 0"
    assert await refusal() == (206, offline)
    broker.offsets.forget(group="g", topic="T")
    assert await refusal() == (1, "THe consumer group <g> not exist")


async def test_a_reset_on_the_broker_is_suspended_while_resets_are_pushed(
    rocketmq: EmbeddedRocketMQ, peer: Peer
) -> None:
    """A reset that no pull has reported yet is valid again after the setting is switched back."""
    await reset(peer)
    await push_resets(rocketmq, peer)
    assert await stored(peer) == 2

    broker = rocketmq.broker
    broker.change_settings(broker.settings.changed({"useServerSideResetOffset": "true"}))

    assert await stored(peer) == 0


async def test_a_reset_of_one_queue_returns_the_queue_with_its_broker(peer: Peer) -> None:
    reply = await reset(peer, queueId=0)

    assert list(ResetOffsetBody.from_json(reply.body).offset_table) == [MessageQueue("T", "broker-a", 0)]


@pytest.mark.parametrize(
    ("changed", "code", "remark"),
    [
        ({"consumerGroup": "never"}, 26, "Group never not exist!"),
        ({"consumerGroup": "a b"}, 26, "Group a b not exist!"),
        ({"topic": "never"}, 17, "Topic never not exist!"),
        ({"queueId": None}, 29, "QueueId is null, topic is T"),
        ({"commitOffset": None}, 29, "Offset is null, topic is T"),
        ({"commitOffset": "x"}, 29, "Offset is null, topic is T"),
    ],
    ids=str,
)
async def test_an_invalid_commit_is_rejected(peer: Peer, changed: dict[str, Any], code: int, remark: str) -> None:
    """Also for an unknown group, even with auto-creation."""
    fields: dict[str, Any] = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
    reply = await peer.call(UPDATE, texts(**(fields | changed)))

    assert (reply.code, reply.remark) == (code, remark)
