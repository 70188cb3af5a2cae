"""An event loop in a thread of its own, for synchronous callers, and for callers with another event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from rmqd.process.loop import close_loop, keep_running

T = TypeVar("T")

GRACE_SECONDS: Final = 10.0  # that a call may take beyond its own limit, such as with a handler that ignores it
END_SECONDS: Final = 5.0


class LoopBlockedError(RuntimeError):
    """Code that runs in the event loop blocks it. The text has the place."""


class BackgroundLoop:
    """Runs coroutines for other threads, between `start` and `close`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_over = False
        # a daemon thread: a handler that blocks the loop forever must not keep pytest from ending
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: TracebackType | type[BaseException] | BaseException | None) -> None:
        self._is_over = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_SECONDS)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_seconds: float) -> T:
        """Run a coroutine to its end. Returns what it returns, and raises what it raises.

        The coroutine has to end by itself within `timeout_seconds`. Raises LoopBlockedError if it runs for much longer,
        and RuntimeError if it is called in the loop's own thread, where it would wait for itself.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "this is the thread of the kit's own event loop, in which async handlers run: waiting here would last "
                "for ever; in an async handler call it by `await asyncio.to_thread(...)`"
            )
        future: Future[T] = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result(timeout_seconds + GRACE_SECONDS)
        except TimeoutError:
            if future.done():  # the work's own
                raise
            raise LoopBlockedError(
                f"no end after {timeout_seconds + GRACE_SECONDS:g} s: an async handler blocks the event loop, which it "
                f"shares with the consumer (def handle runs in a thread instead); it is here:\n{self._stack()}"
            ) from None
        finally:
            future.cancel()

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            keep_running(loop, lambda: self._is_over)
        finally:
            close_loop(loop, END_SECONDS / 2)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-4:]) if frame is not None else "(its thread has ended)"
