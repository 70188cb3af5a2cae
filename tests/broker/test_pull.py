"""Pulls from the embedded broker: checks, messages and commits. Codes and remarks are the real broker's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.wire.bodies.heartbeat_data import SubscriptionData, tag_subscription
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from tests.broker.peer import Peer

PULL, LITE_PULL, CHECK = 11, 361, 46
COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def fields(**changed: object) -> dict[str, str]:
    """Return the ext fields of a pull of queue 0 from its start, with the subscription in the request."""
    values: dict[str, Any] = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": SUBSCRIPTION,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15000,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }
    return {key: str(value) for key, value in (values | changed).items() if value is not None}


async def pull(peer: Peer, code: int = PULL, **changed: Any) -> RemotingCommand:
    return await peer.call(code, fields(**changed))


def bodies(reply: RemotingCommand) -> list[bytes]:
    block = decode_messages(reply.body, MessageQueue("T", "b", 0))
    assert not block.corrupt
    return [message.body for message in block.messages]


def summary(reply: RemotingCommand) -> tuple[int, str | None, Mapping[str, str]]:
    return reply.code, reply.remark, reply.ext_fields


def ends(next_begin: int, low: int, high: int) -> dict[str, str]:
    return {
        "nextBeginOffset": str(next_begin),
        "minOffset": str(low),
        "maxOffset": str(high),
        "suggestWhichBrokerId": "0",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }


@pytest.mark.parametrize("code", [PULL, LITE_PULL])
async def test_a_pull_returns_messages_and_the_lowest_and_highest_offset(peer: Peer, code: int) -> None:
    for number in range(3):
        await peer.send("T", b"%d" % number)
    reply = await pull(peer, code)
    assert summary(reply) == (0, "FOUND", ends(3, 0, 3))
    assert bodies(reply) == [b"0", b"1", b"2"]
    assert bodies(await pull(peer, maxMsgNums=1, queueOffset=1)) == [b"1"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"queueOffset": 2}, (19, "OFFSET_OVERFLOW_ONE", ends(2, 0, 2))),
        ({"queueOffset": 33}, (21, "OFFSET_OVERFLOW_BADLY", ends(2, 0, 2))),
        ({"queueOffset": -3}, (21, "OFFSET_TOO_SMALL", ends(0, 0, 2))),
        ({"queueId": 1}, (19, "NO_MESSAGE_IN_QUEUE", ends(0, 0, 0))),
        ({"queueId": 1, "queueOffset": 5}, (21, "NO_MESSAGE_IN_QUEUE", ends(0, 0, 0))),
        ({"subscription": "B"}, (20, "NO_MATCHED_MESSAGE", ends(2, 0, 2))),
        ({"subscription": " "}, (20, "NO_MATCHED_MESSAGE", ends(2, 0, 2))),
        ({"subscription": "||"}, (23, "parse the consumer's subscription failed", {})),
        ({"subscription": None, "expressionType": "SQL92"}, (23, "parse the consumer's subscription failed", {})),
        ({"topic": "none"}, (17, "topic[none] not exist, apply first please! " + FAQ, {})),
        ({"consumerGroup": "not legal"}, (26, "subscription group [not legal] does not exist, " + FAQ, {})),
        ({"sysFlag": 0}, (24, "the consumer's group info not exist" + FAQ, {})),
    ],
)
async def test_the_response_to_a_pull_without_messages_gives_the_reason(
    peer: Peer, changed: dict[str, Any], expected: tuple[int, str, dict[str, str]]
) -> None:
    for _ in range(2):
        await peer.send("T", TAGS="A")
    assert summary(await pull(peer, **changed)) == expected


async def test_the_subscription_of_the_heartbeat_filters_if_it_is_as_new_as_the_pull(peer: Peer) -> None:
    for tag in ("A", "B", "C"):
        await peer.send("T", tag.encode(), TAGS=tag)
    await peer.heartbeat("g", [tag_subscription("T", "A || C", 7)])
    reply = await pull(peer, sysFlag=0, subVersion=7, subscription="B")
    assert (reply.code, bodies(reply)) == (0, [b"A", b"C"])
    reply = await pull(peer, sysFlag=0, subVersion=8)
    assert summary(reply) == (25, "the consumer's subscription not latest", {})
    reply = await pull(peer, sysFlag=0, topic="%RETRY%g")
    assert summary(reply) == (24, "the consumer's subscription not exist" + FAQ, {})


async def test_a_condition_filters_by_properties(peer: Peer) -> None:
    for price in ("5", "50", "none"):
        await peer.send("T", price.encode(), price=price, TAGS="A")
    by_request: dict[str, Any] = {"subscription": "price > 10 AND TAGS = 'A'", "expressionType": "SQL92"}
    reply = await pull(peer, **by_request)
    assert (summary(reply), bodies(reply)) == ((0, "FOUND", ends(3, 0, 3)), [b"50"])
    await peer.heartbeat("g", [SubscriptionData("T", "price < 10", sub_version=1, expression_type="SQL92")])
    assert bodies(await pull(peer, sysFlag=0, subVersion=1)) == [b"5"]


async def test_a_valid_pull_commits_even_if_it_finds_no_message(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    for _ in range(3):
        await peer.send("T")
    offsets = embedded.broker.offsets
    await pull(peer, sysFlag=SUBSCRIPTION | COMMIT, commitOffset=2, queueOffset=99)
    assert offsets.get("g", "T", 0) == 2
    await pull(peer, sysFlag=SUBSCRIPTION, commitOffset=1)
    await pull(peer, sysFlag=COMMIT, commitOffset=1)  # refused: the group has no member
    assert offsets.get("g", "T", 0) == 2


async def test_a_reset_is_reported_once(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    for _ in range(3):
        await peer.send("T")
    embedded.broker.offsets.reset("g", "T", 0, 1)
    assert summary(await pull(peer, queueOffset=3)) == (21, "OFFSET_RESET", ends(1, 0, 3))
    assert (await pull(peer, queueOffset=3)).code == 19
