"""A handler that writes down what it sees; its plugin name is `tests.daemon.seeing_handler:Seeing`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rmqd import Batch, DeadLetter, Retry

PLUGIN = "tests.daemon.seeing_handler:Seeing"


class Seeing:
    """A message called `retry` is tried again once, one called `dead` is given up at once."""

    class Options(BaseModel):
        """Where to write."""

        path: Path

    def __init__(self, options: Options) -> None:
        self._file = os.open(options.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def handle(self, batch: Batch) -> None:
        """Each message is a line of its own."""
        for message in batch:
            seen = [message.keys, message.topic, batch.message_queue.topic, message.message_queue.topic]
            os.write(self._file, (json.dumps([*seen, message.reconsume_times]) + "\n").encode())
            if message.keys == "dead":
                raise DeadLetter("as told")
            if message.keys == "retry" and not message.reconsume_times:
                raise Retry


def seen(path: Path) -> list[list[Any]]:
    """Of each message its key, its topic, that of its batch's queue and of its own, and how often it came before."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
