"""A producer that sends messages during a history."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.errors import RmqdError
from tests.simulation.loop import LoopClock
from tests.simulation.names import LANE, TAGS, TOPIC, lane_of

if TYPE_CHECKING:
    from tests.simulation.history import History


async def produce(history: History, chance: random.Random) -> None:
    """Send messages at random moments, one or several at once, and record the keys that a broker acknowledged."""
    client = ClientInstance(ClientOptions(nameservers=history.nameservers, instance_name="p"), clock=LoopClock())
    running = asyncio.create_task(client.run())
    number = 0
    until = history.loop.now + history.plan.seconds * 0.9
    while history.loop.now < until:
        await asyncio.sleep(chance.expovariate(2.0))
        for _ in range(min(chance.choice((1, 1, 1, 20)), history.plan.most_messages - number)):
            key, number = f"k{number}", number + 1
            with contextlib.suppress(RmqdError):
                tag, lane = chance.choice(TAGS), {LANE: lane_of(key)}
                await client.producer.send(OutgoingMessage(TOPIC, b"x", tags=tag, keys=key, properties=lane))
                history.sent.add(key)
    client.stop()
    await asyncio.wait((running,))
