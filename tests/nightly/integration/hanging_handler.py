"""A synchronous handler that never returns from one message; used by its plugin name, like LedgerHandler."""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import BaseModel

from rmqd import Batch


class HangingHandler:
    """Appends the keys of handled messages to a file."""

    class Options(BaseModel):
        """`hangs_at` is the key of the message whose first delivery hangs."""

        path: Path
        hangs_at: str

    def __init__(self, options: Options) -> None:
        self._options = options

    def handle(self, batch: Batch) -> None:
        """Hang, or write a line."""
        for message in batch:
            if message.keys == self._options.hangs_at and not message.reconsume_times:
                time.sleep(3600)
            with self._options.path.open("a") as file:
                file.write(f"{message.keys}\n")
