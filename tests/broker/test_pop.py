"""Pops of the embedded broker, as in 5.5.0: messages of several queues, members and groups, and start offsets."""

from __future__ import annotations

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.codes import ResponseCode
from tests.broker.peer import Peer, connected
from tests.broker.popping import BROKER, pop, popped, texts
from tests.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def send_to_queues(peer: Peer, *bodies: str) -> None:
    """Send one message to each queue."""
    for number, body in enumerate(bodies):
        await peer.send("T", body.encode(), queue_id=number)


async def test_one_pop_returns_messages_of_all_queues_and_hides_them(peer: Peer) -> None:
    await send_to_queues(peer, "a", "b", "c", "d")

    first, second = await popped(peer), await popped(peer)

    assert texts(first) == ["a", "b", "c", "d"]
    assert second == []
    assert {got.handle.broker_name for got in first} == {BROKER}


async def test_members_share_messages_and_each_group_gets_all(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await send_to_queues(peer, "a", "b", "c", "d")
    async with connected(embedded.broker.address) as other:
        mine, theirs = await popped(peer, max_msg_nums=3), await popped(other, max_msg_nums=3)
        strangers = await popped(other, group="h")

    assert (len(mine), len(theirs)) == (3, 1)
    assert texts(mine + theirs) == texts(strangers) == ["a", "b", "c", "d"]


async def test_a_pop_of_an_empty_topic_without_wait_time_returns_at_once(peer: Peer) -> None:
    reply = await pop(peer)

    assert (reply.code, reply.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    assert reply.body == b""


@pytest.mark.parametrize("init_mode", [0, 1])
async def test_a_new_group_starts_at_the_first_message_of_a_young_queue(peer: Peer, init_mode: int) -> None:
    """Even if the group asks to start at the end (init_mode 1), because the queue still has its first message."""
    await send_to_queues(peer, "a", "b")

    assert texts(await popped(peer, init_mode=init_mode)) == ["a", "b"]


async def test_messages_are_popped_again_after_a_reset(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await peer.send("T", b"a")
    await peer.send("T", b"b")
    assert texts(await popped(peer)) == ["a", "b"]

    embedded.broker.offsets.reset("g", "T", 0, 1)

    assert texts(await popped(peer)) == ["b"]
    assert await popped(peer) == []
