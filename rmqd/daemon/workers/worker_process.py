"""One worker process, as seen by its parent."""

from __future__ import annotations

from typing import Final, Self

from rmqd.daemon.metrics.totals import ProcessSnapshot
from rmqd.process.channel import BuildOrder
from rmqd.process.child import ChildProcess

HIDDEN_COMMAND: Final = "_worker"


class WorkerProcess(ChildProcess[ProcessSnapshot]):
    """A running worker."""

    name = "worker"

    @classmethod
    async def spawn(cls) -> Self:
        """Start a worker process, which waits for its specification. Raises OSError."""
        return await cls.start(("rmqd", HIDDEN_COMMAND))

    async def build(self, order: BuildOrder) -> None:
        """Build the worker's groups without connecting. Raises ConfigError, ChildGoneError."""
        await self.ask("build", order)

    def _snapshot_in(self, value: object) -> ProcessSnapshot | None:
        return value if isinstance(value, ProcessSnapshot) else None
