"""Orderly pops of the embedded broker, as 5.5.0 does them: one member has a queue's messages at a time, in order."""

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


async def test_a_queue_is_closed_until_all_is_acknowledged(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
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


async def test_other_queues_are_open(peer: Peer) -> None:
    await send(peer)
    await popped(peer, order=True)
    await peer.send("T", b"other", queue_id=1)

    assert texts(await popped(peer, order=True)) == ["other"]


async def test_what_was_not_acknowledged_comes_again_in_its_place(peer: Peer, clock: ManualClock) -> None:
    """No retry topic, and how often each was tried is told beside the messages."""
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


async def test_the_same_attempt_may_ask_again(peer: Peer) -> None:
    """It did not get the reply, perhaps. For that its messages were tried no more often."""
    await send(peer)
    assert len(await popped(peer, order=True, attempt_id="one")) == 3

    reply = await pop(peer, order=True, attempt_id="one")

    assert len(messages_of(reply)) == 3
    assert reply.ext_fields["orderCountInfo"] == "0 0 0"
    assert await popped(peer, order=True, attempt_id="two") == []


async def test_an_attempt_that_asks_again_keeps_its_counts(peer: Peer, clock: ManualClock) -> None:
    await send(peer, 1)
    await popped(peer, order=True, attempt_id="one")
    clock.turn(INVISIBLE_SECONDS)

    for _ in range(3):
        reply = await pop(peer, order=True, attempt_id="two")
        assert reply.ext_fields["orderCountInfo"] == "0 qo0%0 1;0 0 1"


async def test_a_message_is_hidden_for_another_time(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    await send(peer, 1)
    [got] = await popped(peer, order=True)
    clock.turn(1)
    hidden = await hide(peer, got, 3)
    assert (hidden.handle.pop_time, hidden.handle.invisible_time) == (got.handle.pop_time, 4000)

    clock.turn(2.999)
    assert await popped(peer, order=True) == []
    clock.turn(0.001)
    assert texts(await popped(peer, order=True)) == ["0"]


async def test_acknowledging_opens_the_queue_for_who_waits(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await send(peer, 2)
    got = await popped(peer, order=True, max_msg_nums=1)
    opaque = peer.post(200050, pop_fields(order=True, poll_time=60_000))
    await waiting(embedded, ANY)

    assert (await ack_all(peer, got)).code == 0

    assert texts(messages_of(await peer.reply(opaque))) == ["1"]


async def test_time_opens_the_queue_for_who_waits(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    await send(peer, 1)
    await popped(peer, order=True)
    opaque = peer.post(200050, pop_fields(order=True, poll_time=600_000))
    await waiting(embedded, ANY)

    clock.turn(INVISIBLE_SECONDS)
    embedded.broker.schedule.wake()

    assert texts(messages_of(await peer.reply(opaque))) == ["0"]


async def test_acknowledgements_of_earlier_pops_change_nothing(
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


async def test_a_message_that_was_not_popped_is_refused(peer: Peer) -> None:
    await send(peer, 2)
    [got] = await popped(peer, order=True, max_msg_nums=1)

    reply = await ack(peer, type(got)(got.message, got.handle._replace(queue_offset=1)))

    assert reply.code == 13
    assert "offset is illegal, key:T@g@0, old:0, commit:1, next:-1" in (reply.remark or "")


async def test_a_batch_passes_over_what_is_outside_of_the_queue(peer: Peer) -> None:
    await send(peer, 1)
    [got] = await popped(peer, order=True)
    outside = type(got)(got.message, got.handle._replace(queue_offset=7))

    assert (await ack_all(peer, [outside, got])).code == 0


async def test_a_reset_opens_the_queue(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await send(peer)
    await popped(peer, order=True)

    embedded.broker.offsets.reset("g", "T", 0, 1)

    assert texts(await popped(peer, order=True)) == ["1", "2"]


async def test_a_queue_is_still_closed_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
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
