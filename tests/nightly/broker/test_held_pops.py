"""Pops and notifications that wait on the embedded broker."""

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
    """Return once so many pops wait."""
    await eventually(lambda: embedded.broker.held_pops.waiting(place) == count, f"{count} pops wait for {place}")


def held(peer: Peer, **changed: Any) -> int:
    """A pop that waits for long."""
    return peer.post(POP, pop_fields(**{"poll_time": 60_000, **changed}))


async def test_a_message_ends_the_wait(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    opaque = held(peer)
    await waiting(embedded, ANY)
    assert embedded.open_requests == 0

    await peer.send("T", b"a", queue_id=3)

    assert texts(messages_of(await peer.reply(opaque))) == ["a"]
    assert embedded.broker.held_pops.count == 0


async def test_a_message_wakes_one_of_a_group_and_one_of_each_group(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    first, second, other = held(peer), held(peer), held(peer, group="h")
    await waiting(embedded, ANY, 2)
    await waiting(embedded, GroupQueue("T", "h", -1))

    await peer.send("T", b"a")

    assert texts(messages_of(await peer.reply(first))) == ["a"]
    assert texts(messages_of(await peer.reply(other))) == ["a"]
    assert embedded.broker.held_pops.waiting(ANY) == 1
    await peer.send("T", b"b")
    assert texts(messages_of(await peer.reply(second))) == ["b"]


async def test_who_waits_for_a_queue_hears_of_that_queue(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    opaque = held(peer, queue_id=1)
    await waiting(embedded, GroupQueue("T", "g", 1))

    await peer.send("T", b"0", queue_id=0)
    await peer.send("T", b"1", queue_id=1)

    assert texts(messages_of(await peer.reply(opaque))) == ["1"]


async def test_what_is_not_wanted_wakes_nobody(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    opaque = held(peer, exp="b")
    await waiting(embedded, ANY)

    await peer.send("T", b"a", TAGS="a")
    assert embedded.broker.held_pops.waiting(ANY) == 1
    await peer.send("T", b"b", TAGS="b")

    assert texts(messages_of(await peer.reply(opaque))) == ["b"]


async def test_the_rest_is_for_the_next_who_waits(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """Messages that came while nobody looked, such as those of a batch, wake one after the other."""
    one, two = held(peer, max_msg_nums=1), held(peer, max_msg_nums=1)
    await waiting(embedded, ANY, 2)

    embedded.broker.held_pops.wake(ANY)  # somebody looks, before the messages are told
    store = embedded.broker.store
    listeners, store._listeners = store._listeners, []
    await peer.send("T", b"a")
    await peer.send("T", b"b")
    store._listeners = listeners
    embedded.broker.held_pops.wake(ANY)

    assert texts(messages_of(await peer.reply(one)) + messages_of(await peer.reply(two))) == ["a", "b"]


async def test_who_wants_no_message_waits_in_peace(
    embedded: EmbeddedRocketMQ, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are there, and none is for it: it must not look for them all the time."""
    await peer.send("T", b"a")
    looks = Mock(side_effect=embedded.broker.held_pops.hold)
    monkeypatch.setattr(embedded.broker.held_pops, "hold", looks)

    assert (await pop(peer, max_msg_nums=0, poll_time=50)).code == ResponseCode.POLLING_TIMEOUT

    assert looks.call_count <= 3


async def test_a_retry_ends_the_wait(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """Also in a retry topic that did not exist when the wait began."""
    await peer.send("T", b"a")
    await popped(peer, invisible_time=100)

    [again] = messages_of(await pop(peer, poll_time=60_000))

    assert (again.text, again.message.reconsume_times) == ("a", 1)


async def test_a_wait_ends_with_its_time(peer: Peer) -> None:
    reply = await pop(peer, poll_time=50)

    assert (reply.code, reply.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")


@pytest.mark.parametrize("clock", [ManualClock()])
async def test_the_wait_is_measured_by_the_broker_s_clock(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    opaque = held(peer, poll_time=60_000)
    await waiting(embedded, ANY)

    clock.turn(59.9)
    assert embedded.broker.held_pops.waiting(ANY) == 1
    clock.turn(0.1)

    assert (await peer.reply(opaque)).code == ResponseCode.POLLING_TIMEOUT


async def test_who_has_gone_gets_nothing(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """Its messages would be hidden for nobody."""
    async with connected(embedded.broker.address) as leaving:
        held(leaving)
        await waiting(embedded, ANY)
    await waiting(embedded, ANY, 0)

    await peer.send("T", b"a")

    assert texts(await popped(peer)) == ["a"]


async def test_who_goes_as_a_message_comes_gets_nothing(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """Between the message and the look at the queue, in the same turn of the loop."""
    async with connected(embedded.broker.address) as leaving:
        held(leaving)
        await waiting(embedded, ANY)
        [pop_that_waits] = embedded.broker.held_pops._held[ANY]

        embedded.broker.store.put(StoredMessage(topic="T", body=b"a"))
        pop_that_waits.channel.connection_lost(None)

    assert texts(await popped(peer)) == ["a"]


@pytest.mark.parametrize("setting", [{"maxPopPollingSize": "1"}, {"popPollingSize": "0"}])
async def test_no_more_wait_than_may(embedded: EmbeddedRocketMQ, peer: Peer, setting: dict[str, str]) -> None:
    broker = embedded.broker
    broker.change_settings(broker.settings.changed(setting))
    opaque = held(peer)
    await waiting(embedded, ANY)

    assert (await pop(peer, poll_time=60_000)).code == ResponseCode.POLLING_FULL

    await peer.send("T", b"a")
    assert texts(messages_of(await peer.reply(opaque))) == ["a"]


async def test_how_many_wait_is_told(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    held(peer)
    held(peer)
    await waiting(embedded, ANY, 2)

    reply = await peer.call(POLLING_INFO, {"consumerGroup": "g", "topic": "T", "queueId": "-1"})

    assert (reply.code, reply.ext_fields) == (0, {"pollingNum": "2"})
    assert embedded.broker.held_pops.queues_of("g") == {("T", -1)}


def notification_fields(**changed: str) -> dict[str, str]:
    return {"consumerGroup": "g", "topic": "T", "queueId": "-1", "pollTime": "0", "bornTime": "0", **changed}


async def test_a_notification_says_whether_there_is_something(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    nothing = await peer.call(NOTIFICATION, notification_fields())
    opaque = peer.post(NOTIFICATION, notification_fields(pollTime="60000"))
    await eventually(lambda: embedded.broker.held_notifications.count, "the second one waits")

    await peer.send("T", b"a")
    told = await peer.reply(opaque)

    assert (nothing.code, nothing.ext_fields) == (0, {"hasMsg": "false", "pollingFull": "false"})
    assert (told.code, told.ext_fields["hasMsg"]) == (0, "true")
    assert (await peer.call(NOTIFICATION, notification_fields(queueId="1"))).ext_fields["hasMsg"] == "false"
    assert texts(await popped(peer)) == ["a"]
    assert (await peer.call(NOTIFICATION, notification_fields())).ext_fields["hasMsg"] == "false"
