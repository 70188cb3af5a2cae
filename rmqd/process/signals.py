"""The signals of the process: SIGTERM and SIGINT request a stop, SIGHUP a reload."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rmqd.process.kept_reload import KeptReload

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def signals_handled(on_stop: Callable[[signal.Signals], None], on_reload: Callable[[], None]) -> Iterator[None]:
    """Call `on_stop` at every SIGTERM and SIGINT, and `on_reload` at SIGHUP, from the running loop.

    The previous handlers are restored when the block ends. An earlier SIGHUP is handled first.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGHUP)}
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_stop, number)
    loop.add_signal_handler(signal.SIGHUP, on_reload)
    kept = before[signal.SIGHUP]
    if isinstance(kept, KeptReload) and kept.is_requested:
        on_reload()
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            # None stands for a handler that Python did not install, and cannot restore.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
