"""Answers of a child process that arrive late, or that the other end no longer reads."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

import pytest

from rmqd.runtime.child_process import ChildAnswer, ChildChannel, ChildProcess, ChildRequest
from rmqd.runtime.event_loop import run_in_loop
from tests.waiting import eventually


def test_answers_to_a_closed_end_are_dropped() -> None:
    """Runs in the event loop of the processes: a killed daemon must not cause errors in its children."""

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


class Child(ChildProcess[str]):
    """A child whose snapshots are texts."""

    snapshot_type = str


@pytest.mark.process
async def test_a_child_that_answers_late_with_an_error_is_no_longer_silent() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
    ours, theirs = socket.socketpair()
    child = Child(process, await ChildChannel.over(ours), os.memfd_create("faults"))
    other_end = await ChildChannel.over(theirs)
    try:
        child.patience_seconds = 0.01
        assert await child.refresh() is None
        assert child.is_silent
        request = await other_end.receive()
        assert isinstance(request, ChildRequest)
        other_end.post(ChildAnswer(request.number, None, ("no snapshot",)))
        await eventually(lambda: not child.is_silent, "the answer is read")
    finally:
        await other_end.close()
        await child.dispose()
