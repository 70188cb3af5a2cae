"""Sends a backlog, as fast as the broker takes it."""

from __future__ import annotations

import asyncio

from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.client.producer import OutgoingMessage

SENDERS = 64


def send_numbered(nameserver: str, topic: str, messages: int) -> None:
    """Store messages with the keys m0 up to m`messages` - 1, each once: what is not answered is an error."""
    asyncio.run(_send(nameserver, topic, messages))


async def _send(nameserver: str, topic: str, messages: int) -> None:
    client = ClientInstance(ClientOptions(nameservers=tuple(nameserver.split(";"))))
    numbers = iter(range(messages))

    async def sender() -> None:
        for number in numbers:
            await client.producer.send(OutgoingMessage(topic, b"%d" % number * 20, keys=f"m{number}"))

    try:
        await asyncio.gather(*(sender() for _ in range(SENDERS)))
    finally:
        await client.close()
