"""A thread of a test that works for the length of a `with` block."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Background(ABC):
    """Runs `work` in a thread. The end of the block sets `stop` and waits for the thread."""

    def __init__(self, name: str) -> None:
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True, name=name)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop.set()
        self.thread.join()

    @abstractmethod
    def work(self) -> None:
        """The work of the thread. It returns at its end, or once `stop` is set."""
