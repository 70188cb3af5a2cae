"""Pops of the embedded broker, as in 5.5.0: responses, errors, start offsets, filters and peeks.

The core of these tests is in tests/broker/test_pop.py.
"""

from __future__ import annotations

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.codes import ResponseCode
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, TopicConfig
from tests.broker.peer import Peer
from tests.broker.popping import messages_of, pop, pop_fields, popped, texts
from tests.broker.test_pop import clock, send_to_queues
from tests.clock import ManualClock

__all__ = ["clock"]


POP, PEEK, NOTIFICATION, POLLING_INFO = 200050, 200052, 200054, 200055


async def test_a_response_has_the_fields_of_the_real_broker(peer: Peer, clock: ManualClock) -> None:
    for body in (b"0", b"1", b"2"):
        await peer.send("T", body, queue_id=2)

    reply = await pop(peer, max_msg_nums=2)

    assert (reply.code, reply.remark) == (0, "FOUND")
    assert reply.ext_fields == {
        "popTime": str(round(clock.wall() * 1000)),
        "invisibleTime": "60000",
        "reviveQid": "0",
        "restNum": "1",
        "startOffsetInfo": "0 2 0",
        "msgOffsetInfo": "0 2 0,1",
    }
    [_, last] = messages_of(reply)
    assert (last.handle.start_offset, last.handle.queue_offset) == (0, 1)
    assert (await pop(peer)).ext_fields["reviveQid"] == "1"


async def test_a_pop_tolerates_zero_revive_queues(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    embedded.broker.change_settings(embedded.broker.settings.changed({"reviveQueueNum": "0"}))
    await peer.send("T", b"a")

    assert texts(await popped(peer)) == ["a"]


async def test_statistics_show_the_retries_of_a_group_that_pops(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    """Although no heartbeat subscribes to the retry topic."""
    await peer.heartbeat("g", [])
    await peer.send("T", b"a")
    await popped(peer)
    clock.turn(61)
    embedded.broker.schedule.wake()

    stats = await peer.call(208, {"consumerGroup": "g"})

    assert b'"topic":"%RETRY%g_T"}:{"brokerOffset":1,"consumerOffset":0' in stats.body


async def test_an_offset_outside_the_queue_is_corrected(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await peer.send("T", b"a")
    embedded.broker.offsets.commit("g", "T", 0, 100)

    assert await popped(peer) == []
    await peer.send("T", b"b")

    assert texts(await popped(peer)) == ["b"]


@pytest.mark.parametrize(
    ("changed", "code", "remark"),
    [
        ({"max_msg_nums": 33}, ResponseCode.INVALID_PARAMETER, "is greater than 32"),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, "topic[unknown] not exist"),
        ({"topic": "closed"}, ResponseCode.NO_PERMISSION, "the topic[closed] peeking message is forbidden"),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER, "queueId[4] is illegal"),
        ({"group": "a b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group [a b] does not exist"),
        ({"group": "off"}, ResponseCode.NO_PERMISSION, "subscription group no permission, off"),
        ({"exp_type": "SQL92", "exp": "price >"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "subscription failed"),
        ({"exp": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "subscription failed"),
    ],
)
async def test_invalid_pops_are_rejected(
    embedded: EmbeddedRocketMQ, peer: Peer, changed: dict[str, str], code: ResponseCode, remark: str
) -> None:
    embedded.broker.topics.put(TopicConfig(topic_name="closed", perm=2))
    embedded.broker.groups.put(SubscriptionGroupConfig(group_name="off", consume_enable=False))

    reply = await pop(peer, **changed)

    assert reply.code == code
    assert remark in (reply.remark or "")


async def test_a_pop_that_arrives_after_its_timeout_is_rejected(peer: Peer, clock: ManualClock) -> None:
    """Its client no longer waits, and the messages would be invisible to others."""
    await peer.send("T", b"a")
    now = round(clock.wall() * 1000)

    late = await pop(peer, born_time=now - 1501, poll_time=1000)

    assert (late.code, late.remark) == (210, "the broker[127.0.0.1] pop message is timeout too much")
    assert texts(await popped(peer, born_time=now - 1500, poll_time=1000)) == ["a"]


async def test_peeked_messages_stay_visible(peer: Peer) -> None:
    await send_to_queues(peer, "a", "b", "c", "d")
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "-1", "maxMsgNums": "3"}

    first, second = await peer.call(PEEK, fields), await peer.call(PEEK, fields)

    for reply in (first, second):
        assert (reply.code, reply.remark, reply.ext_fields["restNum"]) == (0, "FOUND", "4")
        assert reply.body.count(b"MSG_REGION") == 3
    assert texts(await popped(peer)) == ["a", "b", "c", "d"]
    nothing = await peer.call(PEEK, fields)
    assert (nothing.code, nothing.remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")


async def test_a_missing_field_is_named_in_the_error(peer: Peer) -> None:
    fields = pop_fields()
    del fields["invisibleTime"]

    reply = await peer.call(POP, fields)

    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "invisibleTime is missing" in (reply.remark or "")


async def test_a_pop_of_one_queue_reads_only_that_queue(peer: Peer) -> None:
    await send_to_queues(peer, "a", "b", "c")

    assert texts(await popped(peer, queue_id=1)) == ["b"]
    assert texts(await popped(peer)) == ["a", "c"]


async def test_each_pop_commits_its_offsets(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """So consumerProgress shows the messages that were not popped yet."""
    await send_to_queues(peer, "a", "b", "c", "d")

    await popped(peer)

    assert embedded.broker.offsets.queues("g", "T") == {0: 1, 1: 1, 2: 1, 3: 1}
    await peer.heartbeat("g", ())
    stats = await peer.call(208, {"consumerGroup": "g"})
    assert stats.body.count(b'"consumerOffset":1') == 4


@pytest.mark.parametrize(("init_mode", "expected"), [(0, ["1", "2"]), (1, ["2"])])
async def test_a_new_group_starts_at_the_first_or_the_last_message(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock, init_mode: int, expected: list[str]
) -> None:
    await peer.send("T", b"0")
    clock.turn(73 * 3600)
    assert embedded.broker.store.expire() == 1
    await peer.send("T", b"1")
    await peer.send("T", b"2")

    assert texts(await popped(peer, init_mode=init_mode)) == expected


async def test_pops_are_filtered_by_tags_and_conditions(peer: Peer) -> None:
    for tag, price in (("a", "1"), ("b", "2"), ("c", "3")):
        await peer.send("T", tag.encode(), TAGS=tag, price=price)

    assert texts(await popped(peer, exp="a || c")) == ["a", "c"]
    assert texts(await popped(peer, group="h", exp_type="SQL92", exp="price > 1")) == ["b", "c"]
    assert texts(await popped(peer, group="i", exp_type=None, exp=None)) == ["a", "b", "c"]


async def test_messages_that_the_filter_rejects_are_skipped(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await peer.send("T", b"a", TAGS="a")

    assert await popped(peer, exp="b") == []
    assert embedded.broker.offsets.get("g", "T", 0) == 1
