"""Handles batches one after the other, in as many processes as needed: when one dies, the next one starts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqd.trying.handler_process import HandlerProcess
from rmqd.trying.order import CallResult

if TYPE_CHECKING:
    from rmqd.config.model.root import RootConfig
    from rmqd.wire.messages.message import Message


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of one batch."""

    messages: Sequence[Message]
    result: CallResult
    ended: str | None = None
    """How its process ended, if it ended."""


class Trial:
    """The handler of the configuration's only group, in separate processes.

    `runs` counts the processes so far. `at_end` is the problem at the end of the last one.
    """

    def __init__(self, config: RootConfig, timeout_seconds: float) -> None:
        self.runs = 0
        self.at_end: str | None = None
        self._config = config
        self._timeout = timeout_seconds

    async def run(self, batches: Sequence[list[Message]]) -> AsyncGenerator[BatchReport]:
        """Handle batches, and yield a report when each call has ended. Raises HandlerUnusableError.

        The caller must close the generator if it does not read everything.
        """
        process: HandlerProcess | None = None
        self.at_end = None
        try:
            for batch in batches:
                if process is None:
                    process = await HandlerProcess.begin(self._config)
                    self.runs += 1
                result, ended = await process.call(batch, self._timeout)
                if ended is not None:
                    await process.dispose()
                    process = None
                yield BatchReport(batch, result, ended)
            if process is not None:
                self.at_end = await process.end()
        finally:
            if process is not None:
                await process.dispose()
