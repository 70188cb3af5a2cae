"""Long polling of the embedded broker: held pulls, what wakes them, and their responses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.wire.messages.encode import StoredMessage
from tests.broker.peer import Peer
from tests.broker.test_held_pulls import WAITS, held
from tests.broker.test_pull import COMMIT, PULL, fields, summary
from tests.clock import ManualClock
from tests.waiting import eventually


@pytest.mark.parametrize("clock", [ManualClock()])
async def test_the_suspend_timeout_is_measured_by_the_broker_s_clock(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    opaque = await held(embedded, peer, suspendTimeoutMillis=60_000)

    clock.turn(59.9)
    assert embedded.broker.held_pulls.count == 1
    clock.turn(0.1)

    assert (await peer.reply(opaque)).code == 19


async def test_without_long_polling_the_broker_sets_the_timeout(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    broker = embedded.broker
    broker.change_settings(replace(broker.settings, longPollingEnable=False, shortPollingTimeMills=1))
    assert (await peer.call(PULL, fields(sysFlag=WAITS, suspendTimeoutMillis=60_000))).code == 19


async def test_a_pull_commits_on_arrival_and_not_when_it_is_woken(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    offsets = embedded.broker.offsets
    opaque = peer.post(PULL, fields(sysFlag=WAITS | COMMIT, commitOffset=0))
    await eventually(lambda: embedded.broker.held_pulls.count == 1, "one pull is held")
    assert offsets.get("g", "T", 0) == 0
    offsets.commit("g", "T", 0, 5)
    await peer.send("T")
    await peer.reply(opaque)
    assert offsets.get("g", "T", 0) == 5


async def test_a_woken_pull_is_checked_again(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    opaque = await held(embedded, peer)
    embedded.broker.store.put(StoredMessage(topic="T", body=b"x"))
    embedded.broker.topics.delete("T")  # before the loop's next iteration, which answers the pull
    assert (await peer.reply(opaque)).code == 17


async def test_a_woken_pull_reports_a_reset(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await peer.send("T")
    opaque = await held(embedded, peer, queueOffset=1)
    embedded.broker.offsets.reset("g", "T", 0, 0)
    await peer.send("T")
    assert summary(await peer.reply(opaque))[:2] == (21, "OFFSET_RESET")


async def test_held_pulls_do_not_count_as_open_requests(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await held(embedded, peer)
    assert embedded.open_requests == 0
