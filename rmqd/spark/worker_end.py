"""The end of Spark's Python worker processes, which run no exit handlers: the last word before it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGHUP, signal.SIGTERM)
_leave: Final = os._exit
_last_words: list[Callable[[], object]] = []


def at_worker_end(call: Callable[[], object]) -> None:
    """Have `call` called before this worker process ends, unless it is killed. For its main thread.

    Spark closes a worker's pipe, on which pyspark.daemon ends the process by `os._exit`, and sends SIGHUP meanwhile.
    """
    if not _last_words:
        os._exit = _end  # type: ignore[assignment]
        for number in _SIGNALS:
            signal.signal(number, _signalled)
    _last_words.append(call)


def _signalled(number: int, _: FrameType | None) -> None:
    if _last_words:  # else the end is under way
        _end(128 + number)


def _end(code: int) -> None:
    calls, _last_words[:] = _last_words[:], []
    for call in calls:
        call()
    _leave(code)
