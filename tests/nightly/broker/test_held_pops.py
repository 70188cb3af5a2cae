"""Held pops and notifications of the embedded broker."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.broker.held_requests import GroupQueue
from rmqd.codes import ResponseCode
from rmqd.wire.messages.encode import StoredMessage
from tests.broker.peer import Peer, connected
from tests.broker.popping import messages_of, pop, pop_fields, popped, texts
from tests.clock import ManualClock
from tests.waiting import eventually

POP, NOTIFICATION, POLLING_INFO = 200050, 200054, 200055
ANY = GroupQueue("T", "g", -1)


async def waiting(embedded: EmbeddedRocketMQ, place: GroupQueue, count: int = 1) -> None:
    """Return when this number of pops is held."""
    await eventually(
        lambda: embedded.broker.held_pops.waiting_count(place) == count, f"{count} pops are held for {place}"
    )


def held(peer: Peer, **changed: Any) -> int:
    """Post a pop with a poll time of 60 s; return its opaque."""
    return peer.post(POP, pop_fields(**{"poll_time": 60_000, **changed}))


async def test_a_message_wakes_a_held_pop(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    opaque = held(peer)
    await waiting(embedded, ANY)
    assert embedded.open_requests == 0

    await peer.send("T", b"a", queue_id=3)

    assert texts(messages_of(await peer.reply(opaque))) == ["a"]
    assert embedded.broker.held_pops.count == 0


async def test_a_message_wakes_one_pop_of_each_group(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    first, second, other = held(peer), held(peer), held(peer, group="h")
    await waiting(embedded, ANY, 2)
    await waiting(embedded, GroupQueue("T", "h", -1))

    await peer.send("T", b"a")

    assert texts(messages_of(await peer.reply(first))) == ["a"]
    assert texts(messages_of(await peer.reply(other))) == ["a"]
    assert embedded.broker.held_pops.waiting_count(ANY) == 1
    await peer.send("T", b"b")
    assert texts(messages_of(await peer.reply(second))) == ["b"]


async def test_a_pop_of_one_queue_is_woken_only_for_that_queue(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    opaque = held(peer, queue_id=1)
    await waiting(embedded, GroupQueue("T", "g", 1))

    await peer.send("T", b"0", queue_id=0)
    await peer.send("T", b"1", queue_id=1)

    assert texts(messages_of(await peer.reply(opaque))) == ["1"]


async def test_a_message_that_the_filter_rejects_wakes_no_pop(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    opaque = held(peer, exp="b")
    await waiting(embedded, ANY)

    await peer.send("T", b"a", TAGS="a")
    assert embedded.broker.held_pops.waiting_count(ANY) == 1
    await peer.send("T", b"b", TAGS="b")

    assert texts(messages_of(await peer.reply(opaque))) == ["b"]


async def test_remaining_messages_wake_the_next_pop(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """Messages that arrived without a wake-up, as in a batch, wake one pop after the other."""
    one, two = held(peer, max_msg_nums=1), held(peer, max_msg_nums=1)
    await waiting(embedded, ANY, 2)

    embedded.broker.held_pops.wake(ANY)  # the pop finds no message and is held again
    store = embedded.broker.store
    listeners, store._listeners = store._listeners, []
    await peer.send("T", b"a")
    await peer.send("T", b"b")
    store._listeners = listeners
    embedded.broker.held_pops.wake(ANY)

    assert texts(messages_of(await peer.reply(one)) + messages_of(await peer.reply(two))) == ["a", "b"]


async def test_a_pop_for_zero_messages_is_not_woken_again_and_again(
    embedded: EmbeddedRocketMQ, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages exist, but the pop can take none. It must not check all the time."""
    await peer.send("T", b"a")
    looks = Mock(side_effect=embedded.broker.held_pops.hold)
    monkeypatch.setattr(embedded.broker.held_pops, "hold", looks)

    assert (await pop(peer, max_msg_nums=0, poll_time=50)).code == ResponseCode.POLLING_TIMEOUT

    assert looks.call_count <= 3


async def test_a_retry_wakes_a_held_pop(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """Also in a retry topic that did not exist when the pop was held."""
    await peer.send("T", b"a")
    await popped(peer, invisible_time=100)

    [again] = messages_of(await pop(peer, poll_time=60_000))

    assert (again.text, again.message.reconsume_times) == ("a", 1)


async def test_a_held_pop_times_out(peer: Peer) -> None:
    reply = await pop(peer, poll_time=50)

    assert (reply.code, reply.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")


@pytest.mark.parametrize("clock", [ManualClock()])
async def test_the_poll_time_is_measured_by_the_broker_s_clock(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    opaque = held(peer, poll_time=60_000)
    await waiting(embedded, ANY)

    clock.turn(59.9)
    assert embedded.broker.held_pops.waiting_count(ANY) == 1
    clock.turn(0.1)

    assert (await peer.reply(opaque)).code == ResponseCode.POLLING_TIMEOUT


async def test_a_closed_connection_gets_no_messages(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """Its messages would be invisible without a reader."""
    async with connected(embedded.broker.address) as leaving:
        held(leaving)
        await waiting(embedded, ANY)
    await waiting(embedded, ANY, 0)

    await peer.send("T", b"a")

    assert texts(await popped(peer)) == ["a"]


async def test_a_connection_that_closes_after_the_wake_up_gets_no_messages(
    embedded: EmbeddedRocketMQ, peer: Peer
) -> None:
    """It closes between the message and the read of the queue, in the same loop iteration."""
    async with connected(embedded.broker.address) as leaving:
        held(leaving)
        await waiting(embedded, ANY)
        [pop_that_waits] = embedded.broker.held_pops._held[ANY]

        embedded.broker.store.put(StoredMessage(topic="T", body=b"a"))
        pop_that_waits.channel.connection_lost(None)

    assert texts(await popped(peer)) == ["a"]


@pytest.mark.parametrize("setting", [{"maxPopPollingSize": "1"}, {"popPollingSize": "0"}])
async def test_the_number_of_held_pops_is_limited(
    embedded: EmbeddedRocketMQ, peer: Peer, setting: dict[str, str]
) -> None:
    broker = embedded.broker
    broker.change_settings(broker.settings.changed(setting))
    opaque = held(peer)
    await waiting(embedded, ANY)

    assert (await pop(peer, poll_time=60_000)).code == ResponseCode.POLLING_FULL

    await peer.send("T", b"a")
    assert texts(messages_of(await peer.reply(opaque))) == ["a"]


async def test_the_number_of_held_pops_can_be_queried(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    held(peer)
    held(peer)
    await waiting(embedded, ANY, 2)

    reply = await peer.call(POLLING_INFO, {"consumerGroup": "g", "topic": "T", "queueId": "-1"})

    assert (reply.code, reply.ext_fields) == (0, {"pollingNum": "2"})
    assert embedded.broker.held_pops.queues_of("g") == {("T", -1)}


def notification_fields(**changed: str) -> dict[str, str]:
    return {"consumerGroup": "g", "topic": "T", "queueId": "-1", "pollTime": "0", "bornTime": "0", **changed}


async def test_a_notification_reports_whether_messages_are_available(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    nothing = await peer.call(NOTIFICATION, notification_fields())
    opaque = peer.post(NOTIFICATION, notification_fields(pollTime="60000"))
    await eventually(lambda: embedded.broker.held_notifications.count, "the second notification is held")

    await peer.send("T", b"a")
    told = await peer.reply(opaque)

    assert (nothing.code, nothing.ext_fields) == (0, {"hasMsg": "false", "pollingFull": "false"})
    assert (told.code, told.ext_fields["hasMsg"]) == (0, "true")
    assert (await peer.call(NOTIFICATION, notification_fields(queueId="1"))).ext_fields["hasMsg"] == "false"
    assert texts(await popped(peer)) == ["a"]
    assert (await peer.call(NOTIFICATION, notification_fields())).ext_fields["hasMsg"] == "false"
