"""Whether the group's query may start a micro-batch: not while the group is paused, stopping or being moved.

The query's source runs in another process, so it checks a file: while the file exists, no micro-batch starts. Each
method below creates or removes the file; after setting `stop`, call `hold`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmqd.consumer.pauses import Pauses, PauseScope


class BatchGate:
    """Creates and removes the pause file. `stop` is the event that is set to stop the group."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.pauses = Pauses()
        self.resumed = asyncio.Event()
        """Set while the group as a whole is not paused."""
        self.was_held = False
        """Whether the pause file has existed since the last `open`, so that a micro-batch may be delayed."""
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
        """Keep the pause file in a temporary folder. A pause after the end of the context needs no file."""
        with tempfile.TemporaryDirectory(prefix="rmqd-spark-", ignore_cleanup_errors=True) as folder:
            self._file = Path(folder) / "pause"
            self._switch()
            try:
                yield
            finally:
                self._file = None

    def pause(self, scope: PauseScope) -> None:
        """Add a pause. Only a pause of the whole group prevents micro-batches."""
        self.pauses.add(scope)
        self._switch()

    def resume(self, scope: PauseScope) -> None:
        """End every pause within this scope."""
        self.pauses.end(scope)
        self._switch()

    def hold(self) -> None:
        """Start no more micro-batches until `open`, because the query must end."""
        self._is_holding = True
        self._switch()

    def open(self) -> None:
        """Let a new query start micro-batches, unless the group is paused or stopping."""
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
