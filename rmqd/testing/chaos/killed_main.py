"""The main program of a process that is killed: `python -m rmqd.testing.chaos.killed_main DESCRIPTOR`.

It creates a handler and calls it, writes the result of each call to the descriptor, and kills itself during the last
one. Its parent reads the results.
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

from rmqd.handler_api.batch import Batch, LoadedHandler
from rmqd.testing.chaos.chaos_trial import Bench, ChaosTrial
from rmqd.testing.chaos.killed import BEHIND_ITS_END, SIZE_BYTES, Died, KilledCall, KillSpec
from rmqd.testing.test_group import GroupToRun

T = TypeVar("T")
TraceFunction = Callable[[FrameType, str, object], Any]


def main(descriptor: int) -> None:
    """Execute the order on standard input."""
    os.set_inheritable(descriptor, False)
    sys.path[:] = pickle.load(sys.stdin.buffer)
    spec = pickle.load(sys.stdin.buffer)
    assert isinstance(spec, KillSpec)
    with os.fdopen(descriptor, "wb") as answers, asyncio.Runner() as runner:

        def tell(what: object) -> None:
            answer = pickle.dumps(what)
            answers.write(len(answer).to_bytes(SIZE_BYTES) + answer)
            answers.flush()

        def in_loop(work: Callable[[], Coroutine[Any, Any, T]], _timeout_seconds: float, /) -> T:
            return runner.run(work())

        group = GroupToRun(spec.name, spec.settings)
        killing = _Killing(spec, tell)

        def forked() -> None:
            """Called in the handler's forks: they must not die in its place, nor keep the descriptor open."""
            killing.is_armed = False
            answers.close()

        os.register_at_fork(after_in_child=forked)
        bench = Bench(
            lambda: killing.around(group.make_handler()),
            group.options(Path(spec.state_dir)),
            in_loop,
            state=lambda: None,
            reset=None,
            package=spec.package,
            messages=spec.messages,
            patience_seconds=spec.patience_seconds,
        )
        killing.is_authors = bench.memory.wrote
        trial = ChaosTrial(bench)
        trial.start()
        for number, delivery in enumerate(spec.deliveries, start=1):
            killing.is_armed = spec.moment is not None and number == len(spec.deliveries)
            tell(KilledCall(trial.deliver(delivery), dict(trial.fates)))
            if not sys.stdin.buffer.read(1):  # the parent checks the state
                _end()  # the parent has ended, or does not need the rest
        trial.stop()
        tell(None)


class _Killing:
    """Counts the author's lines that a call runs, and ends the process before one of them."""

    def __init__(self, spec: KillSpec, tell: Callable[[object], None]) -> None:
        self.is_armed = False
        self.is_authors: Callable[[str], bool] = lambda _: False
        self._moment: Final = spec.moment
        self._tell = tell
        self._lines = 0
        self._lock = threading.Lock()  # two threads must not die at once, and half an answer is unusable

    def around(self, handler: LoadedHandler) -> LoadedHandler:
        """Return the handler, whose calls may end the process."""
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
    """Kill this process, and processes that the handler has forked: it is the leader of a session."""
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
