"""A group that an embedded RocketMQ has popping, and what its tests do to the broker."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.client.api.admin_requests import consume_stats
from rmqd.client.api.offset_requests import get_max_offset
from rmqd.client.api.remoting_request import request
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.codes import RequestCode
from rmqd.runtime.clock import Clock, SystemClock
from rmqd.wire.bodies.config_bodies import SetMessageRequestModeRequestBody
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic
from tests.client.running import running
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import Member, member

BROKER_NAME: Final = "broker-a"
LONG_SECONDS: Final = 60.0  # for what takes a broker's rounds: retries, invisible times


@dataclass(frozen=True, slots=True)
class Popping:
    """The broker, and a client of the test's own."""

    rocketmq: EmbeddedRocketMQ
    client: ClientInstance
    clock: Clock

    async def set_mode(self, mode: str, *, share: int = 0, topic: str = TOPIC, group: str = GROUP) -> None:
        """As `mqadmin setConsumeMode` does."""
        body = SetMessageRequestModeRequestBody(topic, group, mode, share).to_json()
        code = RequestCode.SET_MESSAGE_REQUEST_MODE
        await request(self.client.remoting, self.rocketmq.broker.address, code, body)

    async def send(self, *bodies: bytes, **fields: Any) -> None:
        """Send messages to the topic."""
        for body in bodies:
            await self.client.producer.send(OutgoingMessage(TOPIC, body, **fields))

    async def lag(self, topic: str = TOPIC, group: str = GROUP) -> int:
        """Messages of the topic that the group has not finished, as the broker says."""
        stats = await consume_stats(self.client.remoting, self.rocketmq.broker.address, group, topic=topic)
        return sum(offsets.lag for queue, offsets in stats.offset_table.items() if queue.topic == topic)

    def hides_nothing(self) -> bool:
        """Whether no message is popped that would be shown again in time, or is to come later otherwise."""
        return self.rocketmq.broker.schedule.next_due() is None

    async def end_of(self, queue: MessageQueue) -> int:
        """Where the next message of a queue will be."""
        return await get_max_offset(self.client.remoting, self.rocketmq.broker.address, queue)

    @contextlib.asynccontextmanager
    async def member(self, handle: Callable[..., Any], **options: Any) -> AsyncIterator[Member]:
        """A member of the group in POP mode, with a client id of its own."""
        async with member(self.rocketmq.nameserver, handle, clock=self.clock, consume_mode="pop", **options) as one:
            yield one


@contextlib.asynccontextmanager
async def popping(queues: int = 4, clock: Clock | None = None) -> AsyncIterator[Popping]:
    """A broker with the topic, which the group is to pop."""
    clock = clock or SystemClock()
    async with embedded_rocketmq(EmbeddedOptions(topics={TOPIC: queues}), clock) as rocketmq:
        client = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,), instance_name="test"), clock=clock)
        async with running(client.run()):
            pop = Popping(rocketmq, client, clock)
            await pop.set_mode("POP")
            # the group is known, so that what is sent before its first member starts is consumed
            rocketmq.broker.offsets.commit(GROUP, retry_topic(GROUP), 0, 0)
            yield pop
