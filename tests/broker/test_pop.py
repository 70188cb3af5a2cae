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


async def test_a_queue_that_is_named_is_popped_alone(peer: Peer) -> None:
    await send_to_queues(peer, "a", "b", "c")

    assert texts(await popped(peer, queue_id=1)) == ["b"]
    assert texts(await popped(peer)) == ["a", "c"]


async def test_nothing_there_and_no_time_to_wait(peer: Peer) -> None:
    reply = await pop(peer)

    assert (reply.code, reply.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    assert reply.body == b""


async def test_offsets_go_on_with_each_pop(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """consumerProgress shows what nobody popped yet."""
    await send_to_queues(peer, "a", "b", "c", "d")

    await popped(peer)

    assert embedded.broker.offsets.queues("g", "T") == {0: 1, 1: 1, 2: 1, 3: 1}
    await peer.heartbeat("g", ())
    stats = await peer.call(208, {"consumerGroup": "g"})
    assert stats.body.count(b'"consumerOffset":1') == 4


@pytest.mark.parametrize("init_mode", [0, 1])
async def test_a_new_group_of_a_young_queue_gets_all_of_it(peer: Peer, init_mode: int) -> None:
    """Also one that would begin at the end: a queue that still has its first message is begun there."""
    await send_to_queues(peer, "a", "b")

    assert texts(await popped(peer, init_mode=init_mode)) == ["a", "b"]


@pytest.mark.parametrize(("init_mode", "expected"), [(0, ["1", "2"]), (1, ["2"])])
async def test_a_new_group_of_an_old_queue(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock, init_mode: int, expected: list[str]
) -> None:
    """From the first that is there, or the very last one."""
    await peer.send("T", b"0")
    clock.turn(73 * 3600)
    assert embedded.broker.store.expire() == 1
    await peer.send("T", b"1")
    await peer.send("T", b"2")

    assert texts(await popped(peer, init_mode=init_mode)) == expected


async def test_tags_and_conditions(peer: Peer) -> None:
    for tag, price in (("a", "1"), ("b", "2"), ("c", "3")):
        await peer.send("T", tag.encode(), TAGS=tag, price=price)

    assert texts(await popped(peer, exp="a || c")) == ["a", "c"]
    assert texts(await popped(peer, group="h", exp_type="SQL92", exp="price > 1")) == ["b", "c"]
    assert texts(await popped(peer, group="i", exp_type=None, exp=None)) == ["a", "b", "c"]


async def test_what_nobody_wants_is_passed_by(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await peer.send("T", b"a", TAGS="a")

    assert await popped(peer, exp="b") == []
    assert embedded.broker.offsets.get("g", "T", 0) == 1


async def test_a_reset_brings_messages_again(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await peer.send("T", b"a")
    await peer.send("T", b"b")
    assert texts(await popped(peer)) == ["a", "b"]

    embedded.broker.offsets.reset("g", "T", 0, 1)

    assert texts(await popped(peer)) == ["b"]
    assert await popped(peer) == []
