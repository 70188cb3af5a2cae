"""Popped messages in the embedded broker, as in 5.5.0: acknowledged, invisible for longer, redelivered."""

from __future__ import annotations

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.wire.receipt_handle import RetryFlag
from tests.broker.peer import Peer
from tests.broker.popping import INVISIBLE_SECONDS, Got, ack, ack_all, hide, popped, texts
from tests.broker.records import records
from tests.clock import ManualClock

RETRY_V1, RETRY_V2 = "%RETRY%g_T", "%RETRY%g+T"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def later(embedded: EmbeddedRocketMQ, clock: ManualClock, seconds: float = INVISIBLE_SECONDS) -> None:
    """Advance the clock, and run the broker's due tasks."""
    clock.turn(seconds)
    embedded.broker.schedule.wake()


async def one(peer: Peer, body: bytes = b"a", **properties: str) -> Got:
    """Send a message, and pop it."""
    await peer.send("T", body, 0, **properties)
    [got] = await popped(peer)
    return got


async def test_an_acknowledged_message_is_not_redelivered(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    reply = await ack(peer, await one(peer))
    later(embedded, clock)

    assert (reply.code, reply.remark) == (0, None)
    assert await popped(peer) == []
    assert embedded.broker.schedule.next_due() is None


async def test_a_batch_ack_acknowledges_many_messages(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    for number in range(6):
        await peer.send("T", b"%d" % number, queue_id=number % 2)
    got = await popped(peer)

    reply = await ack_all(peer, [each for each in got if each.text != "3"])
    later(embedded, clock)

    assert reply.code == 0
    assert texts(await popped(peer)) == ["3"]


async def test_an_unacknowledged_message_is_redelivered_after_its_invisible_time(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    first = await one(peer, TAGS="tag", colour="red")
    later(embedded, clock, INVISIBLE_SECONDS - 0.001)
    assert await popped(peer) == []
    later(embedded, clock, 0.001)

    [again] = await popped(peer)

    assert again.message.topic == "T"
    assert (again.message.body, again.message.reconsume_times) == (b"a", 1)
    assert again.message.properties == {
        **first.message.properties,
        "ORIGIN_GROUP": "g",
        "1ST_POP_TIME": str(first.handle.pop_time),
        "POP_CK": str(again.handle),
    }
    assert (again.handle.retry, again.handle.queue_id, again.handle.queue_offset) == (RetryFlag.RETRY_V1, 0, 0)
    [stored] = records(embedded.broker.store, RETRY_V1)
    assert "POP_CK" not in stored.properties
    assert embedded.broker.offsets.queues("g", RETRY_V1) == {0: 1}


async def test_the_invisible_time_can_be_changed(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    """The new time starts with the request. The first handle is no longer valid."""
    first = await one(peer)
    clock.turn(1)
    second = await hide(peer, first, 3)
    assert second.handle.pop_time == first.handle.pop_time + 1000
    await ack(peer, first)

    later(embedded, clock, 2.999)
    assert await popped(peer) == []
    later(embedded, clock, 0.001)

    [again] = await popped(peer)
    assert again.message.reconsume_times == 1
    await ack(peer, await hide(peer, again, 300))
    later(embedded, clock, 400)
    assert await popped(peer) == []
