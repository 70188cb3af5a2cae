"""Runs a process of rmqd: its event loop, signals, garbage collection and exit.

Garbage is also collected when the process's memory grows. A handler's `except ValueError as error: kept = error`
creates a reference cycle of a few objects. The cycle keeps the message alive, and with it the whole pull response: a
megabyte and more. Python's collector counts objects, and the daemon makes it run only every 50,000 objects
(`enable_gc_after_start`), because messages create no cycles. Until then such garbage could take gigabytes. So garbage
is also collected when memory has grown by half, and by at least 64 MiB, since the last collection. While memory does
not grow, this costs nothing.

Freed memory must also be returned to the system. Otherwise malloc keeps it, the next check cannot distinguish garbage
from free memory, and memory grows by half again and again.
"""

from __future__ import annotations

from rmqd.runtime import structlog_without_rich  # noqa: F401  before structlog, see there

# isort: split

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
import uvloop

from rmqd.runtime.kept_reload import RememberedReload
from rmqd.runtime.logs.log_writer import finish_writing
from rmqd.runtime.plain_text import describe

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def handle_signals(on_stop: Callable[[signal.Signals], None], on_reload: Callable[[], None]) -> Iterator[None]:
    """Call `on_stop` at every SIGTERM and SIGINT, and `on_reload` at SIGHUP, from the running loop.

    The previous handlers are restored when the block ends. A SIGHUP that RememberedReload received is handled first.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGHUP)}
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_stop, number)
    loop.add_signal_handler(signal.SIGHUP, on_reload)
    kept = before[signal.SIGHUP]
    if isinstance(kept, RememberedReload) and kept.is_requested:
        on_reload()
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            # None stands for a handler that Python did not install, and cannot restore.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


MEMORY_CHECK_SECONDS: Final = 0.1
# longer interval while memory does not grow, so that an idle daemon rarely wakes
QUIET_MEMORY_CHECK_SECONDS: Final = 0.25
NOTABLE_GROWTH_BYTES: Final = 1024 * 1024
MIN_GROWTH_BYTES: Final = 64 * 1024 * 1024
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

CAN_READ_MEMORY: Final = _STATM.exists()
"""Whether the system shows the process's memory in /proc, as Linux does."""


async def collect_as_memory_grows() -> None:
    """Collect garbage when memory grows, until cancelled. If the system does not show the memory, do nothing."""
    if not CAN_READ_MEMORY:
        await asyncio.get_running_loop().create_future()
    statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
    try:
        floor = now = _resident_bytes(statm)
        is_growing = False
        while True:
            await asyncio.sleep(MEMORY_CHECK_SECONDS if is_growing else QUIET_MEMORY_CHECK_SECONDS)
            before, now = now, _resident_bytes(statm)
            is_growing = now - before > NOTABLE_GROWTH_BYTES
            if now - floor > max(MIN_GROWTH_BYTES, floor // 2):
                gc.collect()
                _trim()
                floor = now = _resident_bytes(statm)
            floor = min(floor, now)
    finally:
        os.close(statm)


def _resident_bytes(statm: int) -> int:
    return int(os.pread(statm, 64, 0).split()[1]) * _PAGE_BYTES


def _trim() -> None:
    """Call glibc's malloc_trim. Other C libraries do not have it, and return more memory on their own."""
    import ctypes  # takes 0.7 MiB, which most processes never need

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


log = structlog.get_logger(__name__)

T = TypeVar("T")
Result = TypeVar("Result")

# Messages create no reference cycles, so Python's default of one collection per 700 objects is wasteful; see also the
# module's docstring.
GC_THRESHOLD = 50_000 if CAN_READ_MEMORY else 2_000
THREAD_PATIENCE_SECONDS = 0.5
LEFTOVER_SECONDS = 1.0


def disable_gc_for_start() -> None:
    """Turn the garbage collector off during the start. It would repeatedly scan imported objects, which all stay."""
    gc.disable()


def enable_gc_after_start() -> None:
    """Turn the garbage collector on after the start, and freeze all objects so far, which it then never scans.

    Garbage is not collected first: only 900 of 90,000 objects are garbage, and the scan would delay the first message
    by 25 ms.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(GC_THRESHOLD, 20, 50)


SLICE_SIZE: Final = 200


async def in_slices(items: Iterable[T], size: int = SLICE_SIZE) -> AsyncIterator[list[T]]:
    """Yield the items in lists of `size`. The event loop runs after each list, so that long work blocks nothing.

    If `items` is a generator, the items of a list are computed just before the list is yielded.
    """
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
        await asyncio.sleep(0)


def new_loop() -> asyncio.AbstractEventLoop:
    return uvloop.new_event_loop()


def run_in_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` in a new event loop, and do not wait for threads afterwards.

    `asyncio.run` would join the threads of the default executor. If one of them hangs in a name lookup or in a
    handler's code, the process would never exit.
    """
    loop = new_loop()
    asyncio.set_event_loop(loop)
    try:
        return _complete(loop, main)
    finally:
        close_loop(loop, LEFTOVER_SECONDS)


def close_loop(loop: asyncio.AbstractEventLoop, patience_seconds: float) -> None:
    """Close a stopped loop: cancel the remaining tasks, and wait for them for at most this time."""
    leftover = asyncio.all_tasks(loop)
    for task in leftover:
        task.cancel()
    _complete(loop, _ended(leftover, patience_seconds))
    asyncio.set_event_loop(None)
    loop.close()


def run_loop_until(loop: asyncio.AbstractEventLoop, is_over: Callable[[], bool]) -> None:
    """Run the loop until `is_over()` is true. The code that makes it true also stops the loop.

    Handlers run in this loop and may stop it, with `loop.stop()` or with a task that raises SystemExit or
    KeyboardInterrupt, which asyncio passes out of the loop. The loop then runs again and continues where it was. A
    KeyboardInterrupt is raised if it may come from a terminal. That is possible as long as no code handles SIGINT, for
    example before the daemon installs its signal handlers.
    """
    while not is_over():
        try:
            loop.run_forever()
        # the loop itself cannot run, for example without file descriptors; exceptions of tasks do not arrive here
        except Exception:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and _may_come_from_terminal():
                raise
            if not is_over():
                log.exception("loop.stopped", error=describe(error))
        else:
            if not is_over():
                log.error("loop.stopped", error="loop.stop() was called")


def _complete(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result]) -> Result:
    task = loop.create_task(work)
    task.add_done_callback(lambda _: loop.stop())
    try:
        run_loop_until(loop, task.done)
    finally:
        _take_note(task)
    return task.result()


async def _ended(tasks: set[asyncio.Task[Any]], patience_seconds: float) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=patience_seconds)
    for task in tasks:
        if (error := _take_note(task)) is not None:
            log.error("task.failed_at_end", task=task.get_name(), error=describe(error), exc_info=error)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _take_note(task: asyncio.Task[Any]) -> BaseException | None:
    """Return the exception that ended a task, or None. asyncio does not report an exception that was read."""
    return task.exception() if task.done() and not task.cancelled() else None


def _may_come_from_terminal() -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def exit_process(exit_code: int) -> None:
    """Exit the process without waiting for threads that would keep the interpreter alive."""
    others = [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
    finish_writing()
    # Flush the handlers' output in a thread that may be left behind: the output may be a pipe that is not read.
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
