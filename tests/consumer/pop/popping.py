"""A group in POP mode at an embedded RocketMQ, with the operations of its tests on the broker."""

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
LONG_SECONDS: Final = 60.0  # for retries and invisible times, which wait for the broker's scans


@dataclass(frozen=True, slots=True)
class Popping:
    """The broker, and a client of the test."""

    rocketmq: EmbeddedRocketMQ
    client: ClientInstance
    clock: Clock

    async def set_mode(self, mode: str, *, share: int = 0, topic: str = TOPIC, group: str = GROUP) -> None:
        """Set the mode of a group, as `mqadmin setConsumeMode` does."""
        body = SetMessageRequestModeRequestBody(topic, group, mode, share).to_json()
        code = RequestCode.SET_MESSAGE_REQUEST_MODE
        await request(self.client.remoting, self.rocketmq.broker.address, code, body)

    async def send(self, *bodies: bytes, **fields: Any) -> None:
        """Send messages to the topic."""
        for body in bodies:
            await self.client.producer.send(OutgoingMessage(TOPIC, body, **fields))

    async def lag(self, topic: str = TOPIC, group: str = GROUP) -> int:
        """The number of messages of the topic that the group has not finished, according to the broker."""
        stats = await consume_stats(self.client.remoting, self.rocketmq.broker.address, group, topic=topic)
        return sum(offsets.lag for queue, offsets in stats.offset_table.items() if queue.topic == topic)

    def hides_nothing(self) -> bool:
        """Whether the broker has no invisible or delayed message."""
        return self.rocketmq.broker.schedule.next_due() is None

    async def end_of(self, queue: MessageQueue) -> int:
        """The offset of the next message of a queue."""
        return await get_max_offset(self.client.remoting, self.rocketmq.broker.address, queue)

    @contextlib.asynccontextmanager
    async def member(self, handle: Callable[..., Any], **options: Any) -> AsyncIterator[Member]:
        """A member of the group in POP mode, with its own client id."""
        async with member(self.rocketmq.nameserver, handle, clock=self.clock, consume_mode="pop", **options) as one:
            yield one


@contextlib.asynccontextmanager
async def popping(queues: int = 4, clock: Clock | None = None) -> AsyncIterator[Popping]:
    """A broker with the topic, which the group pops."""
    clock = clock or SystemClock()
    async with embedded_rocketmq(EmbeddedOptions(topics={TOPIC: queues}), clock) as rocketmq:
        client = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,), instance_name="test"), clock=clock)
        async with running(client.run()):
            pop = Popping(rocketmq, client, clock)
            await pop.set_mode("POP")
            # the group is known, so messages sent before its first member starts are consumed
            rocketmq.broker.offsets.commit(GROUP, retry_topic(GROUP), 0, 0)
            yield pop
