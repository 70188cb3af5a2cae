"""A callback before the end of Spark's Python worker processes, which run no exit handlers.

Spark closes a worker's pipe, whereupon pyspark.daemon ends the process with `os._exit`, and sends SIGHUP at the same
time. Before each task, pyspark.daemon sets the default action of SIGHUP, which ends the process. So the signal is
blocked here, and a thread waits for it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Final

_leave: Final = os._exit
_turn: Final = threading.Lock()
_last_words: dict[int, Callable[[], object]] = {}
"""The callback by process id, because handlers may have forked other processes."""


def at_worker_end(call: Callable[[], object]) -> None:
    """Run `call` when this worker process ends, except by SIGKILL. A later call replaces the callback.

    Call it in the worker's main thread, before starting threads that could receive the signal.
    """
    is_first = os.getpid() not in _last_words
    _last_words[os.getpid()] = call
    if is_first:
        os._exit = _end  # type: ignore[assignment]
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        threading.Thread(target=_await_signal, name="rmqd.end", daemon=True).start()


def _await_signal() -> None:
    signal.sigwait({signal.SIGHUP})
    _end(128 + signal.SIGHUP)


def _end(code: int) -> None:
    """Replaces `os._exit`. A second caller waits while the first one ends the process."""
    call = _last_words.get(os.getpid())
    if call is not None:
        with _turn:
            try:
                call()
            finally:
                _leave(code)
    _leave(code)
