"""The main program of a process that is killed: `python -m rmqd.testing.chaos.killed_main DESCRIPTOR`.

It makes a handler, has it called, tells at the descriptor what came of each call, and kills itself at a moment of the
last one. Its parent reads how far it came.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from rmqd.handler_api import Batch
from rmqd.loaded_handler import LoadedHandler
from rmqd.testing.chaos.killed import BEHIND_ITS_END, SIZE_BYTES, Called, Died, KillOrder
from rmqd.testing.chaos.trial import Bench, Trial
from rmqd.testing.group import GroupToRun

T = TypeVar("T")
TraceFunction = Callable[[FrameType, str, object], Any]


def main(descriptor: int) -> None:
    """Do what the order on standard input says."""
    os.set_inheritable(descriptor, False)
    sys.path[:] = pickle.load(sys.stdin.buffer)
    order = pickle.load(sys.stdin.buffer)
    assert isinstance(order, KillOrder)
    with os.fdopen(descriptor, "wb") as answers, asyncio.Runner() as runner:

        def tell(what: object) -> None:
            answer = pickle.dumps(what)
            answers.write(len(answer).to_bytes(SIZE_BYTES) + answer)
            answers.flush()

        def in_loop(work: Callable[[], Coroutine[Any, Any, T]], _timeout_seconds: float, /) -> T:
            return runner.run(work())

        group = GroupToRun(order.name, order.settings)
        killing = _Killing(order, tell)

        def forked() -> None:
            """In what the handler forks: it is not the process that dies, and does not hold up that one's end."""
            killing.is_armed = False
            answers.close()

        os.register_at_fork(after_in_child=forked)
        bench = Bench(
            lambda: killing.around(group.make_handler()),
            group.options(Path(order.state_dir)),
            in_loop,
            state=lambda: None,
            reset=None,
            package=order.package,
            messages=order.messages,
            patience_seconds=order.patience_seconds,
        )
        killing.is_authors = bench.memory.wrote
        trial = Trial(bench)
        trial.start()
        for number, delivery in enumerate(order.deliveries, start=1):
            killing.is_armed = order.moment is not None and number == len(order.deliveries)
            tell(Called(trial.deliver(delivery), dict(trial.fates)))
            if not sys.stdin.buffer.read(1):  # our parent looks at the state
                _end()  # it is gone, or has no use for the rest
        trial.stop()
        tell(None)


class _Killing:
    """Counts the lines of the author's that are run in a call, and ends the process before one of them."""

    def __init__(self, order: KillOrder, tell: Callable[[object], None]) -> None:
        self.is_armed = False
        self.is_authors: Callable[[str], bool] = lambda _: False
        self._moment: Final = order.moment
        self._tell = tell
        self._lines = 0
        self._lock = threading.Lock()  # two threads never die at once, and half an answer is none

    def around(self, handler: LoadedHandler) -> LoadedHandler:
        """The handler, in whose calls the process may die."""
        inner = handler.handle

        def handle(batch: Batch) -> object:
            sys.settrace(self._trace)
            try:
                result = inner(batch)
            finally:
                sys.settrace(None)
            self._at_the_end()
            return result

        async def handle_async(batch: Batch) -> object:
            sys.settrace(self._trace)
            try:
                result = await inner(batch)
            finally:
                sys.settrace(None)
            self._at_the_end()
            return result

        return replace(handler, handle=handle_async if handler.is_async else handle)

    def _trace(self, frame: FrameType, event: str, _: object) -> TraceFunction | None:
        if event == "call":
            return self._trace if self.is_authors(frame.f_globals.get("__name__", "")) else None
        if event == "line" and self.is_armed:
            self._lines += 1
            if self._lines == self._moment:
                self._die(f"before {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
        return self._trace

    def _at_the_end(self) -> None:
        if self.is_armed:
            self._die("after its last line" if self._moment == BEHIND_ITS_END else "after its last line, before return")

    def _die(self, place: str) -> None:
        with self._lock:
            self._tell(Died(place, self._lines))
            _end()


def _end() -> None:
    """Kill this process, and what the handler has forked: its parent has made it the leader of a session."""
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
