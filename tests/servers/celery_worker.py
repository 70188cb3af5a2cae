"""A worker of Celery, with one process, over a Redis of the tests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.servers.process import ServerProcess

TOP: Final = Path(__file__).parent.parent.parent


class CeleryWorker(ServerProcess):
    """Runs the tasks of `tests.servers.celery_tasks` from one queue."""

    ready_seconds = 90.0  # imports take seconds on a busy machine

    def __init__(self, broker: str, queue: str) -> None:
        super().__init__("celery", users=())
        self.working_directory = TOP
        self._broker = broker
        self._queue = queue

    def command(self) -> Sequence[str | Path]:
        app = [sys.executable, "-m", "celery", "-A", "tests.servers.celery_tasks", "-b", self._broker]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        return [*app, "worker", "-P", "solo", "-Q", self._queue, "-l", "INFO", *quiet]

    def is_ready(self) -> bool:
        return " ready." in self._log.read_text()
