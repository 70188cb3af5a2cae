"""A handler that writes the ledger; its plugin name is `tests.integration.ledger_handler:LedgerHandler`."""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from pathlib import Path

from pydantic import BaseModel

from rmqd import Batch, Message
from tests.rocketmq.ledger import FAIL, FINISH, START, Entry


class LedgerHandler:
    """Records when it begins and finishes each message, and takes the configured time in between.

    The first attempt of each `fail_every`-th key fails, and the rest of the batch with it.
    """

    class Options(BaseModel):
        """`member` is our name in the ledger. `slow_key` and each `slow_every`-th key (by CRC) take `slow_seconds`."""

        path: Path
        member: str
        seconds: float = 0.0
        slow_key: str = ""
        slow_every: int = 0
        slow_seconds: float = 0.0
        fail_every: int = 0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._file = -1

    def start(self) -> None:
        """Open the ledger for appending: each line is one write, so kill -9 leaves whole lines."""
        self._file = os.open(self._options.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    async def handle(self, batch: Batch) -> None:
        """Begin, wait, finish. Raises RuntimeError for a key that should fail."""
        for message in batch:
            self._write(START, message, batch.message_queue.broker_name)
            try:
                await asyncio.sleep(self._seconds(message.keys or ""))
                self._fail_if_told(message)
            except BaseException:  # a cancelled call counts as failed too
                self._write(FAIL, message, batch.message_queue.broker_name)
                raise
            self._write(FINISH, message, batch.message_queue.broker_name)

    def stop(self) -> None:
        """Close the ledger."""
        os.close(self._file)

    def _seconds(self, key: str) -> float:
        options = self._options
        slow = key == options.slow_key
        if options.slow_every:
            slow = slow or zlib.crc32(key.encode()) % options.slow_every == 0
        return options.slow_seconds if slow else options.seconds

    def _fail_if_told(self, message: Message) -> None:
        every = self._options.fail_every
        if every and not message.reconsume_times and zlib.crc32((message.keys or "").encode()) % every == every - 1:
            raise RuntimeError(f"{message.keys} fails at its first attempt, as told")

    def _write(self, event: str, message: Message, broker: str) -> None:
        entry = Entry(
            event,
            message.keys or "",
            broker,
            message.queue_id,
            message.queue_offset,
            self._options.member,
            time.time_ns() // 1000,
            message.reconsume_times,
        )
        os.write(self._file, entry.line().encode())
