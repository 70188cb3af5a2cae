"""Whether the group's query may begin a micro-batch: not while the group is paused, is to stop, or is to move.

The query's source runs in another process, so a file tells it: while the file exists, no micro-batch begins. Each
method below creates or removes the file: after `stop` was set, `hold` has to be called.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmqd.consumer.pauses import Pauses, PauseScope


class BatchGate:
    """Creates and removes the pause file. `stop` is the event that is set when the group is to stop."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.pauses = Pauses()
        self.resumed = asyncio.Event()
        """Set while the group as a whole is not paused."""
        self.was_held = False
        """Whether the pause file has existed since the last `open`, so that a micro-batch may have been kept back."""
        self._stop = stop
        self._file: Path | None = None
        self._is_holding = False
        self.resumed.set()

    @property
    def file(self) -> Path:
        """The pause file."""
        assert self._file is not None
        return self._file

    @contextmanager
    def in_folder(self) -> Iterator[None]:
        """Keep the pause file in a temporary folder. A pause after the end of the block needs no file."""
        with tempfile.TemporaryDirectory(prefix="rmqd-spark-", ignore_cleanup_errors=True) as folder:
            self._file = Path(folder) / "pause"
            self._switch()
            try:
                yield
            finally:
                self._file = None

    def pause(self, scope: PauseScope) -> None:
        """Add a pause. Only one of the whole group keeps micro-batches from beginning."""
        self.pauses.add(scope)
        self._switch()

    def resume(self, scope: PauseScope) -> None:
        """End every pause within this scope."""
        self.pauses.end(scope)
        self._switch()

    def hold(self) -> None:
        """Begin no more micro-batches until `open`, because the query is to end."""
        self._is_holding = True
        self._switch()

    def open(self) -> None:
        """Let a new query begin micro-batches, unless the group is paused or is to stop."""
        self.was_held = self._is_holding = False
        self._switch()

    def _switch(self) -> None:
        if self.pauses.whole:
            self.resumed.clear()
        else:
            self.resumed.set()
        if self._file is None:
            return
        if self.pauses.whole or self._is_holding or self._stop.is_set():
            self.was_held = True
            self._file.touch()
        else:
            self._file.unlink(missing_ok=True)
