"""`python -m bench.pull_turn NAMESERVER TOPIC MESSAGES`: drain one queue, message by message.

Each message takes a pull, a turn of a worker, and a commit in the next pull, as when messages arrive slowly. The clock
does not advance, so nothing periodic runs, and `bench.instructions` can count the instructions of one turn.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import uvloop

from rmqd.consumer.pull import pull_loop
from rmqd.handler_api.batch import Batch
from tests.clock import ManualClock
from tests.consumer.members import member

OWNED_SECONDS = 30.0  # after this time, commits need no check of the stored offset


async def drain(nameserver: str, topic: str, messages: int) -> None:
    """Handle this many messages, one in each pull."""
    clock, done, seen = ManualClock(), asyncio.Event(), 0

    async def handle(batch: Batch) -> None:
        nonlocal seen
        seen += len(batch)
        if seen == messages:
            done.set()

    options: dict[str, Any] = {
        "group": f"pull_turn_{time.time_ns()}",
        "subscriptions": [topic],
        "consume_from_where": "first_offset",
    }
    async with member(nameserver, handle, clock=clock, pull_batch_size=1, **options) as one:
        await clock.until(lambda: seen, "the first message is handled")
        one.consumer.pause()
        await clock.advance(OWNED_SECONDS)
        one.consumer.resume()
        await done.wait()


def main() -> None:
    """Drain the topic. Each pull carries a commit, although no time passes between two pulls."""
    pull_loop.COMMIT_PAUSE_SECONDS = 0.0  # type: ignore[misc]
    nameserver, topic, messages = sys.argv[1:]
    uvloop.run(drain(nameserver, topic, int(messages)))


if __name__ == "__main__":
    main()
