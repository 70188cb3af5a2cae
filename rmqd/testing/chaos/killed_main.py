"""The main program of a process that is killed: `python -m rmqd.testing.chaos.killed_main DESCRIPTOR`.

It creates a handler, and makes the deliveries that its parent requests. If a delivery is `killed`, it kills itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from rmqd.handler_api.batch import Batch, LoadedHandler
from rmqd.runtime.child_process import ChildChannel, send_without_loop
from rmqd.testing.chaos.chaos_history import ChaosDelivery
from rmqd.testing.chaos.chaos_trial import ChaosBench, ChaosTrial
from rmqd.testing.chaos.killed import DeliveryOutcome, KillPlace, KillSpec

T = TypeVar("T")


def main(descriptor: int) -> None:
    """Serve the parent until it requests a stop, or ends."""
    with asyncio.Runner() as runner:

        def in_loop(work: Callable[[], Coroutine[Any, Any, T]], _timeout_seconds: float, /) -> T:
            return runner.run(work())

        channel, request = runner.run(ChildChannel.to_parent(descriptor))
        killing = _Killing(descriptor)
        trial: ChaosTrial | None = None
        while request is not None:
            try:
                if trial is None:
                    trial = _started(request.argument, killing, in_loop)
                    channel.answer(request)
                elif request.action == "deliver":
                    channel.answer(request, _delivered(trial, request.argument, killing))
                else:
                    trial.stop()
                    channel.answer(request)
                    break
            except Exception as error:  # noqa: BLE001  any exception of the handler's constructor, start or stop
                channel.refuse(request, error)
            request = runner.run(channel.receive())
        runner.run(channel.close())


def _started(spec: KillSpec, killing: _Killing, in_loop: Any) -> ChaosTrial:
    bench = ChaosBench(
        lambda: killing.around(spec.group.make_handler()),
        spec.group.options(Path(spec.state_dir)),
        in_loop,
        state=lambda: None,
        reset=None,
        package=spec.group.package,
        messages=spec.messages,
        patience_seconds=spec.patience_seconds,
    )
    killing.is_authors = bench.memory.is_authors_module
    trial = ChaosTrial(bench)
    trial.start()
    return trial


def _delivered(trial: ChaosTrial, delivery: ChaosDelivery, killing: _Killing) -> DeliveryOutcome:
    killing.moment, killing.lines = delivery.cut_at if delivery.how == "killed" else None, 0
    outcome = trial.deliver(ChaosDelivery(delivery.part))
    return DeliveryOutcome(outcome, dict(trial.fates), killing.lines)


class _Killing:
    """Counts the author's lines that a call runs, and kills the process before the line number `moment`."""

    def __init__(self, descriptor: int) -> None:
        self.moment: int | None = None
        """The number of the author's line before which the process dies; 0: after the last; None: it does not die."""
        self.is_authors: Callable[[str], bool] = lambda _: False
        self._descriptor = descriptor
        self.lines = 0
        """The number of the author's lines that the call has run."""
        self._lock = threading.Lock()  # only one thread may report and kill: two reports would mix
        os.register_at_fork(after_in_child=self._in_fork)

    def around(self, handler: LoadedHandler) -> LoadedHandler:
        """Wrap a handler, so that its calls count lines and may kill the process."""
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

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[[FrameType, str, object], Any] | None:
        if event == "call":
            return self._trace if self.is_authors(frame.f_globals.get("__name__", "")) else None
        if event == "line":
            self.lines += 1
            if self.lines == self.moment:
                self._die(f"before {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
        return self._trace

    def _at_the_end(self) -> None:
        if self.moment is not None:
            self._die("after its last line, before return" if self.moment else "after its last line")

    def _die(self, place: str) -> None:
        """Report the place. Then kill the process group that this process leads: itself, and the handler's forks."""
        with self._lock:
            send_without_loop(self._descriptor, KillPlace(place))
            os.killpg(os.getpid(), signal.SIGKILL)

    def _in_fork(self) -> None:
        """Called in a fork of this process, which must neither kill itself nor keep the descriptor open."""
        self.moment = None
        os.close(self._descriptor)


if __name__ == "__main__":
    main(int(sys.argv[1]))
