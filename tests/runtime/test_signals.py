"""Signals reach the daemon while it runs, and the earlier handlers afterwards."""

from __future__ import annotations

import os
import signal

from rmqd.runtime.event_loop import handle_signals
from tests.waiting import eventually


async def test_signals_are_received_and_earlier_handlers_are_restored() -> None:
    """Stop signals are received with their number, SIGHUP as a reload."""
    watched = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in watched]
    heard: list[object] = []
    with handle_signals(heard.append, lambda: heard.append("reload")):
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            count = len(heard)
            await eventually(lambda count=count: len(heard) > count, f"{number.name} is received")  # type: ignore[misc]
    assert heard == ["reload", signal.SIGTERM, signal.SIGINT]
    assert [signal.getsignal(number) for number in watched] == before
