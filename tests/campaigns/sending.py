"""Sends a backlog, as fast as the broker takes it."""

from __future__ import annotations

import asyncio

from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.client.sending.outgoing_message import OutgoingMessage

SENDERS = 64


def send_numbered(nameserver: str, topic: str, messages: int, first: int = 0) -> None:
    """Store messages with the keys m`first` up to m`messages` - 1, each once: what is not answered is an error."""
    asyncio.run(_send(nameserver, topic, range(first, messages)))


async def _send(nameserver: str, topic: str, wanted: range) -> None:
    client = ClientInstance(ClientOptions(nameservers=tuple(nameserver.split(";"))))
    numbers = iter(wanted)

    async def sender() -> None:
        for number in numbers:
            await client.producer.send(OutgoingMessage(topic, b"%d" % number * 20, keys=f"m{number}"))

    try:
        await asyncio.gather(*(sender() for _ in range(SENDERS)))
    finally:
        await client.close()
