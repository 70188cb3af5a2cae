"""Orderly pops of the embedded broker, as in 5.5.0: a queue's messages go to one member at a time, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from tests.broker.peer import Peer, connected
from tests.broker.popping import INVISIBLE_SECONDS, ack, ack_all, hide, messages_of, pop, pop_fields, popped, texts
from tests.clock import ManualClock
from tests.nightly.broker.test_held_pops import ANY, waiting


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def send(peer: Peer, count: int = 3) -> None:
    for number in range(count):
        await peer.send("T", b"%d" % number)


async def test_a_queue_is_blocked_until_all_messages_are_acknowledged(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await send(peer)
    first, second = await popped(peer, order=True, max_msg_nums=2)
    assert first.handle.is_orderly
    assert embedded.broker.offsets.get("g", "T", 0) == 0

    assert (await ack(peer, second)).code == 0
    assert embedded.broker.offsets.get("g", "T", 0) == 0
    assert await popped(peer, order=True) == []
    assert (await ack(peer, first)).code == 0

    assert embedded.broker.offsets.get("g", "T", 0) == 2
    assert texts(await popped(peer, order=True)) == ["2"]


async def test_other_queues_are_not_blocked(peer: Peer) -> None:
    await send(peer)
    await popped(peer, order=True)
    await peer.send("T", b"other", queue_id=1)

    assert texts(await popped(peer, order=True)) == ["other"]


async def test_an_unacknowledged_message_is_redelivered_in_order(peer: Peer, clock: ManualClock) -> None:
    """There is no retry topic. The response has the attempts of each message in orderCountInfo."""
    await send(peer, 2)
    first, _ = await popped(peer, order=True)
    await ack(peer, first)
    await peer.send("T", b"2")
    clock.turn(INVISIBLE_SECONDS - 0.001)
    assert await popped(peer, order=True) == []
    clock.turn(0.001)

    reply = await pop(peer, order=True)

    assert texts(messages_of(reply)) == ["1", "2"]
    assert reply.ext_fields["orderCountInfo"] == "0 qo0%1 1;0 0 0"
    clock.turn(INVISIBLE_SECONDS)
    assert (await pop(peer, order=True)).ext_fields["orderCountInfo"] == "0 qo0%1 2;0 qo0%2 1;0 0 1"


async def test_a_pop_with_the_same_attempt_id_gets_the_messages_again(peer: Peer) -> None:
    """Its response may have been lost, so the attempts of the messages are not counted again."""
    await send(peer)
    assert len(await popped(peer, order=True, attempt_id="one")) == 3

    reply = await pop(peer, order=True, attempt_id="one")

    assert len(messages_of(reply)) == 3
    assert reply.ext_fields["orderCountInfo"] == "0 0 0"
    assert await popped(peer, order=True, attempt_id="two") == []


async def test_a_pop_with_the_same_attempt_id_gets_the_same_counts(peer: Peer, clock: ManualClock) -> None:
    await send(peer, 1)
    await popped(peer, order=True, attempt_id="one")
    clock.turn(INVISIBLE_SECONDS)

    for _ in range(3):
        reply = await pop(peer, order=True, attempt_id="two")
        assert reply.ext_fields["orderCountInfo"] == "0 qo0%0 1;0 0 1"


async def test_the_invisible_time_of_a_message_is_changed(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    await send(peer, 1)
    [got] = await popped(peer, order=True)
    clock.turn(1)
    hidden = await hide(peer, got, 3)
    assert (hidden.handle.pop_time, hidden.handle.invisible_time) == (got.handle.pop_time, 4000)

    clock.turn(2.999)
    assert await popped(peer, order=True) == []
    clock.turn(0.001)
    assert texts(await popped(peer, order=True)) == ["0"]


async def test_an_acknowledgement_unblocks_the_queue_for_a_held_pop(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await send(peer, 2)
    got = await popped(peer, order=True, max_msg_nums=1)
    opaque = peer.post(200050, pop_fields(order=True, poll_time=60_000))
    await waiting(embedded, ANY)

    assert (await ack_all(peer, got)).code == 0

    assert texts(messages_of(await peer.reply(opaque))) == ["1"]


async def test_the_end_of_the_invisible_time_unblocks_the_queue_for_a_held_pop(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    await send(peer, 1)
    await popped(peer, order=True)
    opaque = peer.post(200050, pop_fields(order=True, poll_time=600_000))
    await waiting(embedded, ANY)

    clock.turn(INVISIBLE_SECONDS)
    embedded.broker.schedule.wake()

    assert texts(messages_of(await peer.reply(opaque))) == ["0"]


async def test_acknowledgements_of_earlier_pops_have_no_effect(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    await send(peer, 1)
    [former] = await popped(peer, order=True)
    clock.turn(INVISIBLE_SECONDS)
    [latter] = await popped(peer, order=True)

    assert (await ack(peer, former)).code == 0
    assert embedded.broker.offsets.get("g", "T", 0) == 0
    assert (await ack(peer, latter)).code == 0
    assert embedded.broker.offsets.get("g", "T", 0) == 1


async def test_the_acknowledgement_of_an_unpopped_message_is_rejected(peer: Peer) -> None:
    await send(peer, 2)
    [got] = await popped(peer, order=True, max_msg_nums=1)

    reply = await ack(peer, type(got)(got.message, got.handle._replace(queue_offset=1)))

    assert reply.code == 13
    assert "offset is illegal, key:T@g@0, old:0, commit:1, next:-1" in (reply.remark or "")


async def test_a_batch_acknowledgement_skips_offsets_outside_the_queue(peer: Peer) -> None:
    await send(peer, 1)
    [got] = await popped(peer, order=True)
    outside = type(got)(got.message, got.handle._replace(queue_offset=7))

    assert (await ack_all(peer, [outside, got])).code == 0


async def test_a_reset_unblocks_the_queue(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await send(peer)
    await popped(peer, order=True)

    embedded.broker.offsets.reset("g", "T", 0, 1)

    assert texts(await popped(peer, order=True)) == ["1", "2"]


async def test_a_queue_is_still_blocked_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    options = EmbeddedOptions(data_dir=tmp_path, topics={"T": 1})
    async with embedded_rocketmq(options, clock) as before, connected(before.broker.address) as peer:
        await send(peer, 2)
        first, _ = await popped(peer, order=True)
        await ack(peer, first)

    async with embedded_rocketmq(options, clock) as after, connected(after.broker.address) as peer:
        assert await popped(peer, order=True) == []
        clock.turn(INVISIBLE_SECONDS)
        reply = await pop(peer, order=True)
        assert texts(messages_of(reply)) == ["1"]
        assert reply.ext_fields["orderCountInfo"] == "0 qo0%1 1;0 0 1"
