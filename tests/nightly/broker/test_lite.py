"""Lite topics of the embedded broker: messages for a member, their order and their acknowledgement."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from rmqd.wire.bodies.pop_bodies import LiteSubscription, LiteSubscriptionAction, LiteSubscriptionCtlRequestBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pop_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopLiteMessageRequestHeader,
)
from rmqd.wire.lite_topic import lite_topic_queue
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.receipt_handle import PopHandle, RetryFlag
from tests.broker.peer import Peer, connected
from tests.clock import ManualClock
from tests.nightly.broker.asking import Asking, asking
from tests.waiting import eventually

PARENT, GROUP = "chats", "g"
ADD, REPLACE = LiteSubscriptionAction.PARTIAL_ADD, LiteSubscriptionAction.COMPLETE_ADD
REMOVE, LEAVE = LiteSubscriptionAction.PARTIAL_REMOVE, LiteSubscriptionAction.COMPLETE_REMOVE
TAIL = {"type": "TAIL_N", "value": 3}
BOUND = {"+lite.bind.topic": PARENT}


def options(**changed: Any) -> EmbeddedOptions:
    return EmbeddedOptions(settings=BrokerSettings(enableLmq=True, enableMultiDispatch=True), **changed)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def embedded(clock: ManualClock) -> AsyncIterator[EmbeddedRocketMQ]:
    async with embedded_rocketmq(options(), clock) as running, connected(running.broker.address) as peer:
        await set_up(Asking(running, peer, peer))
        yield running


async def set_up(asked: Asking, **attributes: str) -> None:
    """Create a topic for lite topics, and a group that is bound to it."""
    await asked.create(PARENT, attributes="+message.type=LITE")
    config = SubscriptionGroupConfig(group_name=GROUP, attributes=BOUND | {f"+{k}": v for k, v in attributes.items()})
    reply = await asked.broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, config.to_json())
    assert reply.code == 0, reply.remark


async def control(
    peer: Peer, action: LiteSubscriptionAction, *names: str, client: str = "c", **changed: Any
) -> RemotingCommand:
    """Change subscriptions to lite topics (request 200071)."""
    one = LiteSubscription(action, client, GROUP, PARENT, names, **changed)
    body = LiteSubscriptionCtlRequestBody((one,)).to_json()
    return await peer.call(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body)


def pop_fields(client: str = "c", **changed: Any) -> dict[str, str]:
    values: dict[str, Any] = {
        "client_id": client,
        "consumer_group": GROUP,
        "topic": PARENT,
        "max_msg_num": 32,
        "invisible_time": 60_000,
        "poll_time": 0,
        "born_time": 0,
    }
    return PopLiteMessageRequestHeader(**(values | changed)).ext_fields()


async def send(peer: Peer, *keys: str) -> None:
    """Send a message for each `LITE_TOPIC.REST`, to the parent's queues in turn."""
    for number, key in enumerate(keys):
        reply = await peer.send(PARENT, key.encode(), number % 2, __LITE_TOPIC=key.partition(".")[0])
        assert reply.code == 0, reply.remark


def texts(reply: RemotingCommand) -> list[str]:
    """Return the bodies of a pop."""
    assert reply.code in (0, ResponseCode.POLLING_TIMEOUT), reply.remark
    found = decode_messages(reply.body, MessageQueue(PARENT, "broker-a", -1)).messages
    return [message.body.decode() for message in found]


async def popped(peer: Peer, client: str = "c", **changed: Any) -> list[str]:
    return texts(await peer.call(RequestCode.POP_LITE_MESSAGE, pop_fields(client, **changed)))


def handle(reply: RemotingCommand, offset: int) -> dict[str, Any]:
    """Return the common fields of requests about a popped message."""
    pop_time, invisible = int(reply.ext_fields["popTime"]), int(reply.ext_fields["invisibleTime"])
    queue_id, revive = 0, int(reply.ext_fields["reviveQid"])
    extra = PopHandle(0, pop_time, invisible, revive, RetryFlag.NORMAL, "broker-a", queue_id, offset)
    return {"consumer_group": GROUP, "topic": PARENT, "queue_id": 0, "extra_info": str(extra), "offset": offset}


async def ack(peer: Peer, reply: RemotingCommand, name: str, offset: int, **changed: Any) -> RemotingCommand:
    """Acknowledge a popped message (request 200051)."""
    header = AckMessageRequestHeader(**(handle(reply, offset) | {"lite_topic": name} | changed))
    return await peer.call(header.code, header.ext_fields())


async def hide(peer: Peer, reply: RemotingCommand, name: str, offset: int, ms: int, **changed: Any) -> RemotingCommand:
    """Change the invisible time of a popped message (request 200053)."""
    values = handle(reply, offset) | {"lite_topic": name, "invisible_time": ms}
    header = ChangeInvisibleTimeRequestHeader(**(values | changed))
    return await peer.call(header.code, header.ext_fields())


def committed(embedded: EmbeddedRocketMQ, name: str) -> int | None:
    return embedded.broker.offsets.get(GROUP, lite_topic_queue(PARENT, name, "broker-a").topic, 0)


async def test_a_member_gets_its_lite_topics_in_order(embedded: EmbeddedRocketMQ) -> None:
    """A record has its offset in the lite topic. It is stored in the parent topic."""
    async with connected(embedded.broker.address) as peer:
        await send(peer, "a.0", "b.0", "a.1", "c.0")
        await control(peer, REPLACE, "a", "c", "none yet"[:4])
        reply = await peer.call(RequestCode.POP_LITE_MESSAGE, pop_fields())
        assert texts(reply) == ["a.0", "a.1", "c.0"]
        assert reply.ext_fields["orderCountInfo"] == "0;0;0"
        found = decode_messages(reply.body, MessageQueue(PARENT, "broker-a", -1)).messages
        assert [m.stored_properties["INNER_MULTI_QUEUE_OFFSET"] for m in found] == ["0", "1", "0"]
        assert embedded.broker.store.max_offset(PARENT, 0) + embedded.broker.store.max_offset(PARENT, 1) == 4


async def test_a_lite_topic_is_blocked_until_all_messages_are_acknowledged(embedded: EmbeddedRocketMQ) -> None:
    async with connected(embedded.broker.address) as peer:
        await control(peer, REPLACE, "a", "b")
        await send(peer, "a.0", "a.1")
        reply = await peer.call(RequestCode.POP_LITE_MESSAGE, pop_fields())
        await send(peer, "a.2", "b.0")
        assert await popped(peer) == ["b.0"]
        assert (await ack(peer, reply, "a", 1)).code == 0
        assert committed(embedded, "a") == 0
        assert await popped(peer) == []
        assert (await ack(peer, reply, "a", 0)).code == 0
        assert committed(embedded, "a") == 2
        held = peer.post(RequestCode.POP_LITE_MESSAGE, pop_fields(poll_time=20_000))
        assert texts(await peer.reply(held)) == ["a.2"]


async def test_a_held_pop_is_woken_only_by_its_lite_topics(embedded: EmbeddedRocketMQ) -> None:
    async with connected(embedded.broker.address) as peer, connected(embedded.broker.address) as other:
        await control(peer, REPLACE, "a")
        held = peer.post(RequestCode.POP_LITE_MESSAGE, pop_fields(poll_time=20_000))
        await eventually(lambda: embedded.broker.held_lite_pops.count == 1, "the pop is held")
        await send(other, "b.0")
        assert embedded.broker.held_lite_pops.count == 1
        await send(other, "a.0")
        assert texts(await peer.reply(held)) == ["a.0"]


async def test_an_unacknowledged_message_is_redelivered(embedded: EmbeddedRocketMQ, clock: ManualClock) -> None:
    """With the number of earlier pops. A member may change the invisible time."""
    async with connected(embedded.broker.address) as peer:
        await send(peer, "a.0")
        await control(peer, REPLACE, "a")
        first = await peer.call(RequestCode.POP_LITE_MESSAGE, pop_fields())
        assert (await hide(peer, first, "a", 0, 5_000)).code == 0
        held = peer.post(RequestCode.POP_LITE_MESSAGE, pop_fields(poll_time=100_000))
        await eventually(lambda: embedded.broker.held_lite_pops.count == 1, "the pop is held")
        clock.turn(5.1)
        second = await peer.reply(held)
        assert texts(second) == ["a.0"]
        assert second.ext_fields["orderCountInfo"] == "1"
        assert (await hide(peer, second, "a", 0, 3_000, suspend=True)).code == 0
        held = peer.post(RequestCode.POP_LITE_MESSAGE, pop_fields(poll_time=100_000))
        await eventually(lambda: embedded.broker.held_lite_pops.count == 1, "the pop is held")
        clock.turn(3.1)
        third = await peer.reply(held)
        assert third.ext_fields["orderCountInfo"] == "1"  # a suspension is not an attempt
        assert (await ack(peer, first, "a", 0)).code == 0  # the handle of an earlier pop has no effect
        assert committed(embedded, "a") == 0


async def test_members_share_messages_and_release_them_when_they_leave(embedded: EmbeddedRocketMQ) -> None:
    async with connected(embedded.broker.address) as peer:
        names = [f"n{number}" for number in range(20)]
        for client in "cd":
            await control(peer, REPLACE, *names, client=client)
        await send(peer, *(f"{name}.0" for name in names))
        one, rest = await popped(peer, "c"), set[str]()
        assert 0 < len(one) < 20
        await control(peer, LEAVE, client="d")
        rest.update(await popped(peer, "c"))
        assert sorted([*one, *rest]) == sorted(f"{name}.0" for name in names)
        assert await popped(peer, "d") == []


async def test_removed_subscriptions_get_no_messages(embedded: EmbeddedRocketMQ) -> None:
    async with connected(embedded.broker.address) as peer:
        await control(peer, ADD, "a", "b")
        await control(peer, REMOVE, "a")
        await send(peer, "a.0", "b.0")
        assert await popped(peer) == ["b.0"]
        await control(peer, REPLACE, "a")
        assert await popped(peer) == ["a.0"]
        await send(peer, "b.1")
        assert await popped(peer) == []


async def test_an_exclusive_lite_topic_has_one_member() -> None:
    """The last member that subscribed. The previous member is notified."""
    async with asking(options()) as asked, connected(asked.rocketmq.broker.address) as other:
        await set_up(asked, **{"lite.sub.model": "Exclusive"})
        await control(asked.broker, ADD, "a", "b", client="c")
        await control(other, ADD, "a", client="d")
        notice = await asked.broker.request(RequestCode.NOTIFY_UNSUBSCRIBE_LITE)
        assert notice.ext_fields == {"liteTopic": "a", "consumerGroup": GROUP, "clientId": "c"}
        await send(other, "a.0", "b.0")
        assert await popped(other, "d") == ["a.0"]
        assert await popped(asked.broker, "c") == ["b.0"]


async def test_light_queues_have_no_route_at_the_name_server() -> None:
    """The broker accepts each name of a light queue as a topic."""
    async with asking(options()) as asked:
        assert (await asked.route("%LMQ%room-7")).code == ResponseCode.TOPIC_NOT_EXIST
        reply = await asked.broker.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "%LMQ%room-7"})
        assert reply.code == 0


async def test_a_wildcard_group_gets_all_lite_topics() -> None:
    """Also lite topics that are created later. It cannot subscribe by name."""
    async with asking(options()) as asked:
        await set_up(asked, **{"lite.sub.wildcard": "true"})
        await send(asked.broker, "a.0")
        await control(asked.broker, REPLACE)
        await send(asked.broker, "b.0")
        assert sorted(await popped(asked.broker)) == ["a.0", "b.0"]
        assert (await control(asked.broker, ADD, "a")).code == ResponseCode.ILLEGAL_OPERATION


async def test_lite_topics_survive_a_restart(tmp_path: Path) -> None:
    """Their offsets and the popped messages survive too."""
    async with asking(options(data_dir=tmp_path)) as asked:
        await set_up(asked)
        await control(asked.broker, REPLACE, "a", "b")
        await send(asked.broker, "a.0", "a.1", "b.0", "b.1")
        reply = await asked.broker.call(RequestCode.POP_LITE_MESSAGE, pop_fields(max_msg_num=3))
        assert texts(reply) == ["a.0", "a.1", "b.0"]
        for offset in range(2):
            await ack(asked.broker, reply, "a", offset)
        await send(asked.broker, "a.2")
    async with asking(options(data_dir=tmp_path)) as asked:
        assert await popped(asked.broker) == []  # subscriptions are in memory only
        await control(asked.broker, REPLACE, "a", "b")
        assert await popped(asked.broker) == ["a.2"]
        await ack(asked.broker, reply, "b", 0)
        held = asked.broker.post(RequestCode.POP_LITE_MESSAGE, pop_fields(poll_time=20_000))
        assert texts(await asked.broker.reply(held)) == ["b.1"]


async def test_deleting_the_parent_deletes_its_lite_topics(embedded: EmbeddedRocketMQ) -> None:
    async with connected(embedded.broker.address) as peer:
        await control(peer, REPLACE, "a")
        await send(peer, "a.0")
        await popped(peer)
        await peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PARENT})
        assert committed(embedded, "a") is None
        await set_up(Asking(embedded, peer, peer))
        await send(peer, "a.1")
        assert await popped(peer) == ["a.1"]


async def test_without_light_queues_there_are_no_lite_topics() -> None:
    """That is RocketMQ's default. The message is stored only in the parent."""
    async with asking() as asked:
        await set_up(asked)
        await control(asked.broker, REPLACE, "a")
        await send(asked.broker, "a.0")
        assert await popped(asked.broker) == []
        assert asked.rocketmq.broker.store.max_offset(PARENT, 0) == 1


@pytest.mark.parametrize(
    ("changed", "code", "remark"),
    [
        ({"topic": "T"}, ResponseCode.INVALID_PARAMETER, "the topic [T] message type not match"),
        ({"topic": "gone"}, ResponseCode.TOPIC_NOT_EXIST, "topic [gone] not exist"),
        ({"consumer_group": "h"}, ResponseCode.INVALID_PARAMETER, "subscription bind topic not match, h"),
        ({"max_msg_num": 33}, ResponseCode.INVALID_PARAMETER, "num is greater than 32"),
        ({"born_time": 1}, ResponseCode.POLLING_TIMEOUT, "timeout too much"),
    ],
)
async def test_invalid_pops_are_rejected(changed: dict[str, Any], code: int, remark: str) -> None:
    async with asking(options(topics={"T": 1})) as asked:
        await set_up(asked)
        reply = await asked.broker.call(RequestCode.POP_LITE_MESSAGE, pop_fields(**changed))
        assert reply.code == code
        assert remark in (reply.remark or "")


async def test_invalid_acknowledgements_are_rejected(embedded: EmbeddedRocketMQ) -> None:
    async with connected(embedded.broker.address) as peer:
        await control(peer, REPLACE, "a")
        await send(peer, "a.0")
        reply = await peer.call(RequestCode.POP_LITE_MESSAGE, pop_fields())
        assert (await ack(peer, reply, "a", 9)).code == ResponseCode.NO_MESSAGE
        assert (await ack(peer, reply, "a", 1)).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await ack(peer, reply, "a", 0, queue_id=1)).code == ResponseCode.INVALID_PARAMETER
        assert (await ack(peer, reply, "a", 0, consumer_group="h")).code == ResponseCode.INVALID_PARAMETER
        assert (await hide(peer, reply, "a", 9, 1)).code == ResponseCode.NO_MESSAGE
        assert committed(embedded, "a") == 0


async def test_a_start_offset_in_a_subscription_is_rejected(embedded: EmbeddedRocketMQ) -> None:
    """The broker would start at another offset."""
    async with connected(embedded.broker.address) as peer:
        reply = await control(peer, ADD, "a", offset_option=TAIL)
        assert reply.code == ResponseCode.ILLEGAL_OPERATION
        for empty in (b"", b"{}"):
            reply = await peer.call(RequestCode.LITE_SUBSCRIPTION_CTL, {}, empty)
            assert reply.code == ResponseCode.ILLEGAL_OPERATION


async def test_clients_that_left_take_no_memory(embedded: EmbeddedRocketMQ, clock: ManualClock) -> None:
    """Each client's subscription is refused, and its pop times out. Client ids are long: a kept one is noticed."""

    async def pass_by(peer: Peer, start: str) -> None:
        clients = [f"{start}{number}".ljust(10_000, "c") for number in range(50)]
        for client in clients:
            reply = await control(peer, ADD, "a", client=client, offset_option=TAIL)
            assert reply.code == ResponseCode.ILLEGAL_OPERATION
        pops = [peer.post(RequestCode.POP_LITE_MESSAGE, pop_fields(client, poll_time=5000)) for client in clients]
        held = embedded.broker.held_lite_pops
        await eventually(lambda: held.count == len(clients), "all pops are held")
        await clock.advance(6)
        assert [texts(await peer.reply(pop)) for pop in pops] == [[]] * len(clients)

    async with connected(embedded.broker.address) as peer:
        await pass_by(peer, "a")  # creates the objects that are created only once
        tracemalloc.start()
        try:
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            await pass_by(peer, "b")
            gc.collect()
            left = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert left < 300_000, "less than one copy of each client id"
