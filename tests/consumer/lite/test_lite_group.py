"""A group of lite topics at the embedded broker."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import replace

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, embedded_rocketmq
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.consumer.consumer_options import Subscription
from rmqd.handler_api.batch import Batch
from rmqd.wire.bodies.config_bodies import LITE, MESSAGE_TYPE, TopicConfig
from rmqd.wire.lite_topic import BIND_TOPIC_ATTRIBUTE
from rmqd.wire.messages.properties import COMPRESSED, LITE_TOPIC
from tests.client.running import running
from tests.clock import ManualClock
from tests.consumer.groups import GROUP
from tests.consumer.members import member
from tests.waiting import eventually

PARENT = "chats"
BODY_BYTES = 20_000
NAMES = ("room-1", "room-2")
EACH = 3


async def test_messages_of_a_pop_without_room_do_not_overtake_earlier_messages(flowing: ManualClock) -> None:
    """The last body of the pop does not fit until its first lite topic is handled. The handler of the second one waits.

    A pop without a handler call is not an attempt.
    """
    begun: list[tuple[str | None, int, int]] = []
    release = asyncio.Event()

    async def handle(batch: Batch) -> None:
        begun.extend((message.lite_topic, message.queue_offset, message.reconsume_times) for message in batch)
        if batch[0].lite_topic != begun[0][0]:
            await release.wait()

    settings = BrokerSettings(enableLmq=True, enableMultiDispatch=True)
    async with embedded_rocketmq(EmbeddedOptions(settings=settings), flowing) as rocketmq:
        broker = rocketmq.broker
        broker.topics.put(TopicConfig(topic_name=PARENT, attributes={MESSAGE_TYPE: LITE}))
        group = broker.groups.find_or_create(GROUP)
        assert group is not None
        broker.groups.put(replace(group, attributes={BIND_TOPIC_ATTRIBUTE: PARENT}))
        client = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,), instance_name="test"), clock=flowing)
        async with running(client.run()):
            for name in NAMES * EACH:
                body = zlib.compress(bytes(BODY_BYTES))
                sent = OutgoingMessage(PARENT, body, sys_flag=COMPRESSED, properties={LITE_TOPIC: name})
                await client.producer.send(sent)
        async with member(
            rocketmq.nameserver,
            handle,
            clock=flowing,
            consume_mode="pop",
            consume_from_where="first_offset",
            subscriptions={PARENT: Subscription("*", "TAG", NAMES)},
            pull_threshold_size_for_queue_bytes=4 * BODY_BYTES,
        ):
            await eventually(lambda: len(begun) > EACH, "the handler has begun with the second lite topic")
            await flowing.sleep(20)
            assert len(begun) == EACH + 1
            release.set()
            await eventually(lambda: len(begun) >= EACH * len(NAMES), "all are handled", 60)
    assert [(offset, attempts) for _, offset, attempts in begun] == [(offset, 0) for offset in range(EACH)] * len(NAMES)
