"""Send messages with rmqd's producer, several at once, and print one line of figures."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import uvloop

from bench import process_figures
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage


async def send(nameserver: str, topic: str, messages: int, size_bytes: int, inflight: int) -> str:
    """Send `messages` messages. Returns the line of figures. Raises RmqdError."""
    client = ClientInstance(ClientOptions(nameservers=(nameserver,)))
    message = OutgoingMessage(topic, os.urandom(size_bytes))
    left = messages - 1

    async def sender() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await client.producer.send(message)

    try:
        await client.producer.send(message)  # the first send reads the route and connects
        first = process_figures.now()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(inflight):
                tasks.create_task(sender())
        last = process_figures.now()
    finally:
        await client.close()
    return process_figures.line("rmqd", messages - 1, first, first, last, 0)


def main() -> int:
    """Send messages, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.producer_load", description=__doc__)
    parser.add_argument("--namesrv", required=True, help="host:port of the name server")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--bytes", type=int, default=1024, help="size of a body (default 1024)")
    parser.add_argument("--inflight", type=int, default=64, help="requests in flight (default 64)")
    options = parser.parse_args()
    print(uvloop.run(send(options.namesrv, options.topic, options.messages, options.bytes, options.inflight)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
