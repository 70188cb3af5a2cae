"""A handler that records its messages in a file; its plugin name is `tests.daemon.seeing_handler:Seeing`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rmqd import Batch, DeadLetter, Retry

PLUGIN = "tests.daemon.seeing_handler:Seeing"


class Seeing:
    """A message with the key `retry` is retried once, a message with the key `dead` is dead-lettered at once."""

    class Options(BaseModel):
        """The file to append to."""

        path: Path

    def __init__(self, options: Options) -> None:
        self._file = os.open(options.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def handle(self, batch: Batch) -> None:
        """Write one line for each message."""
        for message in batch:
            seen = [message.keys, message.topic, batch.message_queue.topic, message.message_queue.topic]
            os.write(self._file, (json.dumps([*seen, message.reconsume_times]) + "\n").encode())
            if message.keys == "dead":
                raise DeadLetter("as told")
            if message.keys == "retry" and not message.reconsume_times:
                raise Retry


def seen(path: Path) -> list[list[Any]]:
    """For each message: keys, topic, topic of the batch's queue, topic of its queue, reconsume times."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
