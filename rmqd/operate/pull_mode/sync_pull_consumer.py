"""SyncPullConsumer: PullConsumer without `await`, for programs and notebooks that are not written with asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from rmqd.errors import PullConsumerError
from rmqd.operate.pull_mode.pull_consumer import PullConsumer
from rmqd.runtime.event_loop import close_loop, new_loop
from rmqd.wire.messages.message import Message

P = ParamSpec("P")
T = TypeVar("T")

END_SECONDS: Final = 5.0  # how long to wait for an interrupted call, or the event loop's thread, to end


def _waiting(
    method: Callable[Concatenate[PullConsumer, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncPullConsumer, P], T]:
    """Return a function that calls a method of PullConsumer and waits for its result."""

    def call(self: SyncPullConsumer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(method(self._consumer, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class SyncPullConsumer:
    """The methods of PullConsumer without `await`: each call waits for its result.

    The event loop runs in a separate thread, so the member stays in its group while the program computes. Only one
    thread at a time may use the consumer. If Ctrl-C interrupts a poll, the next poll returns the same messages.
    """

    def __init__(self, group: str, **settings: Any) -> None:
        """Check the settings (the same as for PullConsumer), and start the thread. Raises SettingError."""
        self._consumer = PullConsumer(group, **settings)
        self._loop = new_loop()
        self._lock = threading.Lock()  # no call may be submitted after the loop was stopped
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name=f"pull consumer {group}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_closed:
            return
        try:
            self._call(self._consumer.__aexit__(kind, error, traceback))
        finally:
            with self._lock:
                if not self._is_closed:
                    self._loop.call_soon_threadsafe(self._loop.stop)
                self._is_closed = True
            self._thread.join(END_SECONDS)

    def close(self) -> None:
        """Leave the group. With `auto_commit`, commit all returned messages first. Other calls raise afterwards."""
        self.__exit__(None, None, None)

    subscribe = _waiting(PullConsumer.subscribe)
    unsubscribe = _waiting(PullConsumer.unsubscribe)
    assign = _waiting(PullConsumer.assign)
    commit = _waiting(PullConsumer.commit)
    committed = _waiting(PullConsumer.committed)
    assignment = _waiting(PullConsumer.assignment)
    queues = _waiting(PullConsumer.queues)
    seek = _waiting(PullConsumer.seek)
    seek_to_first = _waiting(PullConsumer.seek_to_first)
    seek_to_last = _waiting(PullConsumer.seek_to_last)
    offset_for_time = _waiting(PullConsumer.offset_for_time)
    pause = _waiting(PullConsumer.pause)
    resume = _waiting(PullConsumer.resume)

    def poll(self, timeout: float = 5.0, max_messages: int = 32) -> list[Message]:
        """Wait up to `timeout` seconds for messages, and return up to `max_messages`; an empty list if none arrive."""
        polled: list[Message] = []

        async def poll() -> None:
            polled.extend(await self._consumer.poll(timeout, max_messages))

        try:
            self._call(poll())
        except BaseException:
            first = {message.message_queue: message.queue_offset for message in reversed(polled)}
            for queue, offset in first.items():  # let the next poll return the messages of this interrupted poll
                with contextlib.suppress(PullConsumerError):  # another member may have acquired the queue
                    self.seek(queue, offset)
            raise
        return polled

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop's thread and return its result. An interrupt cancels the coroutine."""
        ended = threading.Event()

        async def run() -> T:
            try:
                return await work
            finally:
                ended.set()

        with self._lock:
            if self._is_closed:
                work.close()
                raise PullConsumerError("the consumer is closed; create another consumer")
            if not self._thread.is_alive():  # os.fork and multiprocessing copy no other thread
                work.close()
                raise PullConsumerError("this process was forked and cannot use the consumer; create another consumer")
            future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise PullConsumerError("another thread has closed the consumer; create another consumer") from None
        except BaseException:
            if not future.done():
                future.cancel()
                ended.wait(END_SECONDS)
            raise

    def _serve(self) -> None:
        self._loop.run_forever()
        close_loop(self._loop, END_SECONDS / 2)
