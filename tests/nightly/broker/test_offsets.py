"""Where groups are in their queues: commits, questions, copies and an operator's resets, as recorded from 5.5.0.

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
    """In place of all that the other had in the topic."""
    await commit(peer, 2)
    await peer.call(352, {"group": "other"})
    await commit(peer, 1, "other", queue=1)

    reply = await peer.call(CLONE, texts(srcGroup="g", destGroup="other", topic="T", offline="true"))

    assert reply.code == 0
    assert (await stored(peer, "other"), await stored(peer, "other", queue=1)) == (2, None)


async def test_offsets_of_a_topic_without_subscription_are_not_copied(peer: Peer) -> None:
    """Of a group that is online, unless it is said not to be."""
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
async def test_reset_on_the_broker_is_refused(peer: Peer, asked: Any, code: int, remark: str) -> None:
    reply = await reset(peer, **asked)

    assert (reply.code, reply.remark) == (code, remark)


async def test_reset_that_is_not_forced_goes_only_back(rocketmq: EmbeddedRocketMQ, peer: Peer) -> None:
    await push_resets(rocketmq, peer)
    await beat(peer, "one", consumer())

    assert targets(await reset(peer, timestamp=-1, isForce="false")) == {0: 2, 1: 0, 2: 0, 3: 0}


async def test_push_is_a_list_where_a_cpp_tool_asks(rocketmq: EmbeddedRocketMQ, peer: Peer) -> None:
    """It goes by the asker's language, not by the members'; the reply to the asker is a map all the same."""
    await push_resets(rocketmq, peer)
    await beat(peer, "one", consumer())

    reply = await reset(peer, LanguageCode.CPP)

    push = await peer.request(RESET_MEMBER)
    assert loads(push.body)["offsetTable"][0] == {"brokerName": "broker-a", "offset": 0, "queueId": 0, "topic": "T"}
    assert targets(push) == targets(reply) == dict.fromkeys(range(QUEUES), 0)
    assert b"[" not in reply.body


async def test_push_is_refused(rocketmq: EmbeddedRocketMQ, peer: Peer) -> None:
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


async def test_resets_wait_while_they_are_pushed(rocketmq: EmbeddedRocketMQ, peer: Peer) -> None:
    """A reset on the broker that no pull was told yet counts again once that is how resets are done."""
    await reset(peer)
    await push_resets(rocketmq, peer)
    assert await stored(peer) == 2

    broker = rocketmq.broker
    broker.change_settings(broker.settings.changed({"useServerSideResetOffset": "true"}))

    assert await stored(peer) == 0


async def test_queue_is_named_by_broker(peer: Peer) -> None:
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
async def test_commit_is_refused(peer: Peer, changed: dict[str, Any], code: int, remark: str) -> None:
    """Of a group that nobody ever named, with auto-creation too."""
    fields: dict[str, Any] = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
    reply = await peer.call(UPDATE, texts(**(fields | changed)))

    assert (reply.code, reply.remark) == (code, remark)
