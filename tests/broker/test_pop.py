"""Pops of the embedded broker: what a member gets, from where, and what others get meanwhile. As 5.5.0 does it."""

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
    """One message to each queue in turn."""
    for number, body in enumerate(bodies):
        await peer.send("T", body.encode(), queue_id=number)


async def test_one_pop_has_messages_of_all_queues_and_hides_them(peer: Peer) -> None:
    await send_to_queues(peer, "a", "b", "c", "d")

    first, second = await popped(peer), await popped(peer)

    assert texts(first) == ["a", "b", "c", "d"]
    assert second == []
    assert {got.handle.broker_name for got in first} == {BROKER}


async def test_members_share_and_other_groups_have_their_own(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await send_to_queues(peer, "a", "b", "c", "d")
    async with connected(embedded.broker.address) as other:
        mine, theirs = await popped(peer, max_msg_nums=3), await popped(other, max_msg_nums=3)
        strangers = await popped(other, group="h")

    assert (len(mine), len(theirs)) == (3, 1)
    assert texts(mine + theirs) == texts(strangers) == ["a", "b", "c", "d"]


async def test_nothing_there_and_no_time_to_wait(peer: Peer) -> None:
    reply = await pop(peer)

    assert (reply.code, reply.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    assert reply.body == b""


@pytest.mark.parametrize("init_mode", [0, 1])
async def test_a_new_group_of_a_young_queue_gets_all_of_it(peer: Peer, init_mode: int) -> None:
    """Also one that would begin at the end: a queue that still has its first message is begun there."""
    await send_to_queues(peer, "a", "b")

    assert texts(await popped(peer, init_mode=init_mode)) == ["a", "b"]


async def test_a_reset_brings_messages_again(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await peer.send("T", b"a")
    await peer.send("T", b"b")
    assert texts(await popped(peer)) == ["a", "b"]

    embedded.broker.offsets.reset("g", "T", 0, 1)

    assert texts(await popped(peer)) == ["b"]
    assert await popped(peer) == []
