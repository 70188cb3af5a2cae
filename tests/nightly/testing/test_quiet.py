"""Jumps of time in a single run, in the test's event loop."""

from __future__ import annotations

import asyncio

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, embedded_rocketmq
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.handler_api.batch import LoadedHandler
from rmqd.testing.handler_run import POLL_SECONDS, HandlerRun
from rmqd.testing.test_group import JumpingClock
from tests.consumer.groups import group_options
from tests.waiting import eventually

LOOKS = 30


async def test_time_does_not_jump_while_a_request_is_open() -> None:
    """The response to a request, of a client or the broker, may cause more work."""
    clock = JumpingClock()
    handler = LoadedHandler("nothing", lambda batch: None, False, None, None)
    async with embedded_rocketmq(EmbeddedOptions(topics={"t1": 1}), clock) as rocketmq:
        client = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,)), clock=clock)
        await client.producer.send(OutgoingMessage("t1", b"in two hours", delay_level=18))
        await client.close()
        (server, *_) = rocketmq.servers
        server.open_requests += 1
        running = asyncio.create_task(HandlerRun(rocketmq, clock, group_options(), handler, set()).run(30))
        queues = {("t1", 0), ("%RETRY%g1", 0)}
        await eventually(lambda: rocketmq.broker.held_pulls.queues_of("g1") == queues, "every pull is held")
        for _ in range(LOOKS):
            await asyncio.sleep(POLL_SECONDS)
        assert clock.jumped_seconds == 0
        server.open_requests -= 1
        result = await running
        assert [message.body for message in result.acked] == [b"in two hours"]
        assert clock.jumped_seconds > 7000
