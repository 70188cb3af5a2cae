"""A cheap sampling profiler for a process that measures itself.

At each CPU tick of the kernel a signal interrupts the main thread, and the handler records its current line. Unlike a
tracing profiler, it does not exaggerate the cost of small calls. Time inside a C function counts for the calling line.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from types import FrameType

INTERVAL_SECONDS = 0.001
DEEPEST = 60
SHOWN = 30


class Sampler:
    """Counts the lines that the main thread executes between `start` and `stop`."""

    def __init__(self) -> None:
        self._lines: Counter[str] = Counter()
        self._own: Counter[str] = Counter()
        self._below: Counter[str] = Counter()
        self._samples = 0

    def start(self) -> None:
        """Start sampling. Call this in the main thread."""
        signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)

    def stop(self) -> None:
        """Stop sampling, and keep the counts."""
        signal.setitimer(signal.ITIMER_PROF, 0)

    def write(self, path: Path) -> None:
        """Write the lines and functions with most samples, in descending order."""
        parts = (
            ("own time by function", self._own),
            ("with callees, by function", self._below),
            ("own time by line", self._lines),
        )
        text = [f"{self._samples} samples"]
        for title, counter in parts:
            text += ["", title]
            text += [f"{count / self._samples:7.1%}  {where}" for where, count in counter.most_common(SHOWN)]
        path.write_text("\n".join(text) + "\n")

    def _note(self, _number: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        self._samples += 1
        self._lines[f"{_name(frame)}:{frame.f_lineno}"] += 1
        self._own[_name(frame)] += 1
        seen = set()
        below: FrameType | None = frame
        for _ in range(DEEPEST):
            if below is None:
                break
            seen.add(_name(below))
            below = below.f_back
        self._below.update(seen)


def _name(frame: FrameType) -> str:
    code = frame.f_code
    return f"{'/'.join(code.co_filename.rsplit('/', 3)[1:])} {code.co_qualname}"
