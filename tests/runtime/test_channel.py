"""What a child says when nobody listens any more."""

from __future__ import annotations

import asyncio
import socket

from rmqd.runtime.child_process import ChildAnswer, ChildChannel
from rmqd.runtime.event_loop import run_in_loop


def test_what_the_other_end_cannot_hear_is_dropped() -> None:
    """In the loop that the processes have: a daemon that was killed is no error of its children."""

    async def talk() -> None:
        ours, theirs = socket.socketpair()
        channel = await ChildChannel.over(ours)
        theirs.close()
        assert await channel.receive() is None
        for number in range(5):
            channel.post(ChildAnswer(number, b"x" * 100_000))
            await asyncio.sleep(0.01)
        await channel.close()
        channel.post(ChildAnswer(0))

    run_in_loop(talk())
