"""Long polling of the embedded broker: which pulls wait, what ends their waiting, and what becomes of them."""

from __future__ import annotations

import pytest

from rmqd.broker import held_requests as held_pulls
from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from tests.broker.peer import Peer, connected
from tests.broker.test_pull import PULL, SUBSCRIPTION, SUSPEND, bodies, fields
from tests.waiting import eventually

WAITS = SUBSCRIPTION | SUSPEND


async def held(embedded: EmbeddedRocketMQ, peer: Peer, **changed: object) -> int:
    """Post a pull, and wait until it is held; its opaque."""
    before = embedded.broker.held_pulls.count
    opaque = peer.post(PULL, fields(sysFlag=WAITS, **changed))
    await eventually(lambda: embedded.broker.held_pulls.count == before + 1, "a pull is held")
    return opaque


async def test_a_message_wakes_every_pull_of_its_queue_and_no_other(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    waiting = embedded.broker.held_pulls
    first = await held(embedded, peer, consumerGroup="g1")
    second = await held(embedded, peer, consumerGroup="g2")
    await held(embedded, peer, consumerGroup="g1", queueId=1)
    assert (waiting.waiting(held_pulls.GroupQueue("T", "", 0)), waiting.queues_of("g1")) == (2, {("T", 0), ("T", 1)})
    await peer.send("T", b"here")
    assert bodies(await peer.reply(first)) == bodies(await peer.reply(second)) == [b"here"]
    assert (waiting.count, waiting.queues_of("g1"), waiting.queues_of("g2")) == (1, {("T", 1)}, set())


async def test_without_the_bit_or_with_another_answer_nothing_waits(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    assert (await peer.call(PULL, fields())).code == 19
    assert (await peer.call(PULL, fields(sysFlag=WAITS, queueOffset=7))).code == 21
    assert (await peer.call(PULL, fields(sysFlag=WAITS, topic="none"))).code == 17
    assert embedded.broker.held_pulls.count == 0


async def test_a_pull_whose_time_is_over_is_answered_with_nothing(peer: Peer) -> None:
    reply = await peer.call(PULL, fields(sysFlag=WAITS, suspendTimeoutMillis=1))
    assert (reply.code, reply.remark) == (19, "NO_MESSAGE_IN_QUEUE")


async def test_a_message_that_a_pull_does_not_want_leaves_it_waiting(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    by_tag = await held(embedded, peer, subscription="A")
    by_condition = await held(embedded, peer, subscription="a = 1", expressionType="SQL92")
    await peer.send("T", b"B", TAGS="B", a="2")
    assert embedded.broker.held_pulls.count == 2
    await peer.send("T", b"A", TAGS="A", a="1")
    for opaque in (by_tag, by_condition):
        reply = await peer.reply(opaque)
        assert (bodies(reply), reply.ext_fields["nextBeginOffset"]) == ([b"A"], "2")


async def test_unwanted_messages_are_passed_before_the_pulls_time_is_over(
    embedded: EmbeddedRocketMQ, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_pulls, "CHECK_INTERVAL_SECONDS", 0.01)
    opaque = await held(embedded, peer, subscription="A", suspendTimeoutMillis=60_000)
    await peer.send("T", TAGS="B")
    reply = await peer.reply(opaque)
    assert (reply.code, reply.remark, reply.ext_fields["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "1")


async def test_pulls_of_a_connection_that_ended_are_dropped_at_once(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await held(embedded, peer, consumerGroup="stays")
    async with connected(embedded.broker.address) as other:
        for queue_id in (0, 0, 1):
            await held(embedded, other, consumerGroup="goes", queueId=queue_id)
    await eventually(lambda: embedded.broker.held_pulls.count == 1, "one pull is held")
    assert embedded.broker.held_pulls.queues_of("stays") == {("T", 0)}
    assert embedded.broker.held_pulls.queues_of("goes") == set()
