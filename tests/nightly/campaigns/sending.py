"""Sends a backlog as fast as the broker accepts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.errors import RmqdError

SENDERS = 64
PATIENT_SENDERS = 16
AGAIN_SECONDS = 0.5


def send_numbered(nameserver: str, topic: str, messages: int, first: int = 0) -> None:
    """Send messages with the keys m`first` up to m`messages` - 1 once each. A missing response is an error."""
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


def send_at_least_once(nameserver: str, topic: str, messages: int, body_of: Callable[[int], bytes]) -> None:
    """Send messages with the keys m0 up to m`messages` - 1. A message without a response may be stored twice."""
    asyncio.run(_send_patiently(nameserver, topic, messages, body_of))


async def _send_patiently(nameserver: str, topic: str, messages: int, body_of: Callable[[int], bytes]) -> None:
    client = ClientInstance(ClientOptions(nameservers=tuple(nameserver.split(";"))))
    numbers = iter(range(messages))

    async def sender() -> None:
        for number in numbers:
            while True:
                try:
                    await client.producer.send(OutgoingMessage(topic, body_of(number), keys=f"m{number}"))
                except RmqdError:
                    await asyncio.sleep(AGAIN_SECONDS)
                else:
                    break

    try:
        await asyncio.gather(*(sender() for _ in range(PATIENT_SENDERS)))
    finally:
        await client.close()
