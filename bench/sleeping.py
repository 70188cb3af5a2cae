"""A handler whose calls take time but no CPU, like calls that wait for a server."""

from __future__ import annotations

import asyncio
from typing import Any

from bench import process_figures


class Sleeps:
    """Prints one line of figures after the last message."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._messages = int(options["messages"])
        self._seconds = float(options["milliseconds"]) / 1000
        self._seen = 0
        self._first: process_figures.Moment | None = None

    async def handle(self, batch: Any) -> None:
        """Wait, and count the messages."""
        if self._first is None:
            self._first = process_figures.now()
        await asyncio.sleep(self._seconds)
        self._seen += len(batch)
        if self._seen == self._messages:
            last = process_figures.now()
            print(process_figures.line("rmqd", self._seen, self._first, self._first, last, 0), flush=True)
