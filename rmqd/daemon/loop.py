"""The event loop of a process, and the end of one."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import uvloop

from rmqd.daemon.log_writer import finish_writing

Result = TypeVar("Result")

# Messages make no reference cycles worth looking for every 700 objects.
GC_THRESHOLD = 50_000
THREAD_PATIENCE_SECONDS = 0.5


def put_off_garbage_collection() -> None:
    """For the start: imports make nothing but what stays, and collections would look at it again and again."""
    gc.disable()


def settle_garbage_collection() -> None:
    """After the start: what was made so far stays for good, so that collections need not look at it again.

    Nothing is collected before: of 90,000 objects 900 are garbage by then, and a look at all takes 25 ms from messages.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(GC_THRESHOLD, 20, 50)


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop of the kind that handlers run in."""
    return uvloop.new_event_loop()


def run_in_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` in an event loop of its own, and wait for no thread afterwards.

    `asyncio.run` would join the threads of the default executor: one that hangs in a name lookup, or in what a
    handler gave it, would delay the exit for good.
    """
    loop = new_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        leftover = asyncio.all_tasks(loop)
        for task in leftover:
            task.cancel()
        loop.run_until_complete(asyncio.wait(leftover, timeout=1.0) if leftover else asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def leave(exit_code: int) -> None:
    """Exit the process; where a thread would hold the interpreter, without waiting for it."""
    others = [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
    finish_writing()
    # What handlers printed, perhaps into a pipe that nobody reads: in a thread, which may be left behind.
    flush = threading.Thread(target=_flush_output, name="rmqd.flush", daemon=True)
    flush.start()
    others.append(flush)
    deadline = time.monotonic() + THREAD_PATIENCE_SECONDS
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in others):
        os._exit(exit_code)
    sys.exit(exit_code)


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
