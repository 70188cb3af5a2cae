"""A group of lite topics at the embedded broker."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import pytest

import rmqd
from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, embedded_rocketmq
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.consumer.canary import Canary
from rmqd.consumer.consumer_options import CanaryOptions, Subscription
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.handler_api.batch import Batch
from rmqd.plugins.handler_plugin import HandlerPlugin
from rmqd.wire.bodies.config_bodies import LITE, MESSAGE_TYPE, TopicConfig
from rmqd.wire.lite_topic import BIND_TOPIC_ATTRIBUTE
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.properties import COMPRESSED, LITE_TOPIC
from tests.client.running import running
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, group_options, handler_of
from tests.waiting import eventually

PARENT: Final = "chats"
BODY_BYTES: Final = 20_000
NAMES: Final = ("room-1", "room-2")
EACH: Final = 3
OPTIONS: Final[dict[str, Any]] = {
    "consume_mode": "pop",
    "consume_from_where": "first_offset",
    "subscriptions": {PARENT: Subscription("*", "TAG", NAMES)},
}


@pytest.fixture
async def client(flowing: ManualClock) -> AsyncIterator[ClientInstance]:
    """A client of a broker with the parent topic, to which the group is bound."""
    settings = BrokerSettings(enableLmq=True, enableMultiDispatch=True)
    async with embedded_rocketmq(EmbeddedOptions(settings=settings), flowing) as rocketmq:
        broker = rocketmq.broker
        broker.topics.put(TopicConfig(topic_name=PARENT, attributes={MESSAGE_TYPE: LITE}))
        group = broker.groups.find_or_create(GROUP)
        assert group is not None
        broker.groups.put(replace(group, attributes={BIND_TOPIC_ATTRIBUTE: PARENT}))
        one = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,)), clock=flowing)
        async with running(one.run()):
            yield one


async def send(client: ClientInstance, lite_topic: str, key: str = "") -> None:
    body, properties = zlib.compress(bytes(BODY_BYTES)), {LITE_TOPIC: lite_topic}
    await client.producer.send(OutgoingMessage(PARENT, body, keys=key, sys_flag=COMPRESSED, properties=properties))


async def test_messages_of_a_pop_without_room_do_not_overtake_earlier_messages(
    client: ClientInstance, flowing: ManualClock
) -> None:
    """The last body of the pop does not fit until its first lite topic is handled. The handler of the second one waits.

    A pop without a handler call is not an attempt.
    """
    begun: list[tuple[str | None, int, int]] = []
    release = asyncio.Event()

    async def handle(batch: Batch) -> None:
        begun.extend((message.lite_topic, message.queue_offset, message.reconsume_times) for message in batch)
        if batch[0].lite_topic != begun[0][0]:
            await release.wait()

    for name in NAMES * EACH:
        await send(client, name)
    options = group_options(pull_threshold_size_for_queue_bytes=4 * BODY_BYTES, **OPTIONS)
    async with running(PushConsumer(options, handler_of(handle), client).run()):
        await eventually(lambda: len(begun) > EACH, "the handler has begun with the second lite topic")
        await flowing.sleep(20)
        assert len(begun) == EACH + 1
        release.set()
        await eventually(lambda: len(begun) >= EACH * len(NAMES), "all are handled", 60)
    assert [(offset, attempts) for _, offset, attempts in begun] == [(offset, 0) for offset in range(EACH)] * len(NAMES)


async def test_a_live_canary_keeps_the_order_of_a_lite_topic(client: ClientInstance) -> None:
    """Its messages lie between messages of the first handler in one batch."""
    offsets: list[int] = []
    overlaps: list[int] = []
    running_calls = 0

    async def handle(batch: Batch) -> None:
        nonlocal running_calls
        running_calls += 1
        offsets.extend(message.queue_offset for message in batch)
        overlaps.append(running_calls)
        await client.clock.sleep(1)
        running_calls -= 1

    options = group_options(consume_message_batch_max_size=8, canary=CanaryOptions(0.5, "keys", "live"), **OPTIONS)
    canary = Canary(handler_of(handle), options, client.clock)
    keys = [f"order-{number}" for number in range(8)]
    for key in keys:
        await send(client, NAMES[0], key)
    async with running(PushConsumer(options, canary.wrap_handler(handler_of(handle)), client).run()):
        await eventually(lambda: len(offsets) >= len(keys), "all are handled")
    assert offsets == sorted(offsets)
    assert set(overlaps) == {1}


@pytest.mark.parametrize("how", ["fails", "expires"])
async def test_a_typed_handler_keeps_the_order_of_a_lite_topic(client: ClientInstance, how: str) -> None:
    """Messages behind a failed message of the same batch wait for its retry, and no attempt counts for them."""
    attempts: list[tuple[str, int]] = []

    @rmqd.handler(decode=lambda body: body)
    async def handle(_: bytes, message: Message) -> None:
        attempts.append((str(message.keys), message.reconsume_times))
        if attempts == [("a", 0), ("b", 0)]:
            if how == "fails":
                raise ValueError
            await asyncio.Event().wait()

    for key in "abcd":
        await send(client, NAMES[0], key)
    options = group_options(consume_message_batch_max_size=3, consume_timeout_seconds=10.0, **OPTIONS)
    async with running(PushConsumer(options, HandlerPlugin.of("typed", handle).load({}), client).run()):
        await eventually(lambda: len(attempts) >= 5, "all are handled", 60)
    assert attempts == [("a", 0), ("b", 0), ("b", 1), ("c", 0), ("d", 0)]


async def test_undecided_messages_wait_behind_a_chosen_retry_in_a_lite_topic(client: ClientInstance) -> None:
    """As in an orderly group: no attempt counts for them. The broker redelivers all messages behind the retried one."""
    attempts: list[tuple[str, int]] = []

    async def handle(batch: Batch) -> None:
        attempts.extend((str(message.keys), message.reconsume_times) for message in batch)
        if len(attempts) == 3:
            batch.retry(batch[0])

    for key in "abc":
        await send(client, NAMES[0], key)
    options = group_options(consume_message_batch_max_size=3, **OPTIONS)
    async with running(PushConsumer(options, handler_of(handle), client).run()):
        await eventually(lambda: len(attempts) >= 6, "all are handled again", 60)
    assert attempts[3:] == [("a", 1), ("b", 0), ("c", 0)]
