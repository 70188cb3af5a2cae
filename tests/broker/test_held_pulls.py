"""Long polling of the embedded broker: which pulls are held, and what ends a held pull."""

from __future__ import annotations

import pytest

from rmqd.broker import held_requests as held_pulls
from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from tests.broker.peer import Peer, connected
from tests.broker.test_pull import PULL, SUBSCRIPTION, SUSPEND, bodies, fields
from tests.waiting import eventually

WAITS = SUBSCRIPTION | SUSPEND


async def held(embedded: EmbeddedRocketMQ, peer: Peer, **changed: object) -> int:
    """Send a pull, wait until it is held, and return its opaque."""
    before = embedded.broker.held_pulls.count
    opaque = peer.post(PULL, fields(sysFlag=WAITS, **changed))
    await eventually(lambda: embedded.broker.held_pulls.count == before + 1, "a pull is held")
    return opaque


async def test_a_message_wakes_only_the_pulls_of_its_queue(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    waiting = embedded.broker.held_pulls
    first = await held(embedded, peer, consumerGroup="g1")
    second = await held(embedded, peer, consumerGroup="g2")
    await held(embedded, peer, consumerGroup="g1", queueId=1)
    assert (waiting.waiting_count(held_pulls.GroupQueue("T", "", 0)), waiting.queues_of("g1")) == (
        2,
        {("T", 0), ("T", 1)},
    )
    await peer.send("T", b"here")
    assert bodies(await peer.reply(first)) == bodies(await peer.reply(second)) == [b"here"]
    assert (waiting.count, waiting.queues_of("g1"), waiting.queues_of("g2")) == (1, {("T", 1)}, set())


async def test_a_pull_without_suspend_flag_or_with_an_error_is_not_held(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    assert (await peer.call(PULL, fields())).code == 19
    assert (await peer.call(PULL, fields(sysFlag=WAITS, queueOffset=7))).code == 21
    assert (await peer.call(PULL, fields(sysFlag=WAITS, topic="none"))).code == 17
    assert embedded.broker.held_pulls.count == 0


async def test_a_held_pull_that_times_out_has_no_messages(peer: Peer) -> None:
    reply = await peer.call(PULL, fields(sysFlag=WAITS, suspendTimeoutMillis=1))
    assert (reply.code, reply.remark) == (19, "NO_MESSAGE_IN_QUEUE")


async def test_a_message_that_does_not_match_does_not_wake_a_pull(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    by_tag = await held(embedded, peer, subscription="A")
    by_condition = await held(embedded, peer, subscription="a = 1", expressionType="SQL92")
    await peer.send("T", b"B", TAGS="B", a="2")
    assert embedded.broker.held_pulls.count == 2
    await peer.send("T", b"A", TAGS="A", a="1")
    for opaque in (by_tag, by_condition):
        reply = await peer.reply(opaque)
        assert (bodies(reply), reply.ext_fields["nextBeginOffset"]) == ([b"A"], "2")


async def test_a_held_pull_skips_messages_that_do_not_match_before_its_timeout(
    embedded: EmbeddedRocketMQ, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_pulls, "CHECK_INTERVAL_SECONDS", 0.01)
    opaque = await held(embedded, peer, subscription="A", suspendTimeoutMillis=60_000)
    await peer.send("T", TAGS="B")
    reply = await peer.reply(opaque)
    assert (reply.code, reply.remark, reply.ext_fields["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "1")


async def test_the_pulls_of_a_closed_connection_are_dropped(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await held(embedded, peer, consumerGroup="stays")
    async with connected(embedded.broker.address) as other:
        for queue_id in (0, 0, 1):
            await held(embedded, other, consumerGroup="goes", queueId=queue_id)
    await eventually(lambda: embedded.broker.held_pulls.count == 1, "one pull is held")
    assert embedded.broker.held_pulls.queues_of("stays") == {("T", 0)}
    assert embedded.broker.held_pulls.queues_of("goes") == set()
