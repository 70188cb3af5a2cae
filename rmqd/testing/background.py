"""An event loop in a separate thread, for synchronous callers, and for callers with another event loop."""

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

GRACE_SECONDS: Final = 10.0  # how much longer than its timeout a call may take, if a handler ignores it
END_SECONDS: Final = 5.0


class LoopBlockedError(RuntimeError):
    """Code that runs in the event loop blocks it. The text shows the code's location."""


class BackgroundLoop:
    """Runs coroutines for other threads, between `start` and `close`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_over = False
        # a daemon thread, so that a handler that blocks the loop forever does not prevent pytest from ending
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: TracebackType | type[BaseException] | BaseException | None) -> None:
        self._is_over = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_SECONDS)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_seconds: float) -> T:
        """Run a coroutine to its end. Returns its result, or raises its exception.

        The coroutine must end within `timeout_seconds` by its own timeout. Raises LoopBlockedError if it runs for much
        longer, and RuntimeError if called in the loop's own thread, where it would wait forever.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "this is the thread of the event loop that runs async handlers, so the call would wait forever; "
                "in an async handler use `await asyncio.to_thread(...)`"
            )
        future: Future[T] = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result(timeout_seconds + GRACE_SECONDS)
        except TimeoutError:
            if future.done():  # the coroutine's own TimeoutError
                raise
            raise LoopBlockedError(
                f"no end after {timeout_seconds + GRACE_SECONDS:g} s: an async handler blocks the event loop, which it "
                f"shares with the consumer (def handle runs in a thread instead); its location:\n{self._stack()}"
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
