"""The handlers of the parity suite. Each message contains its decision for each attempt.

A body is JSON: `{"id": "m1", "do": ["raise", "ok"]}` fails at the first attempt and is acknowledged at the next one.
Every attempt is recorded in a ledger, a file of JSON lines that several processes append to.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rmqd import Batch, DeadLetter, Message, Retry, Suspend


class Scripted:
    """An asynchronous handler with `start` and an options model."""

    class Options(BaseModel):
        """The path of the ledger."""

        ledger: Path

    def __init__(self, options: Options) -> None:
        self._ledger = options.ledger
        self._started = False

    async def start(self) -> None:
        """Record that `start` ran before the first message."""
        await asyncio.sleep(0.01)
        self._started = True

    async def handle(self, batch: Batch) -> None:
        """Follow the scripts: decisions about single messages first, then an exception for the rest."""
        raised: list[Exception] = []
        for message in batch:
            step = _note(self._ledger, batch, message, started=self._started)
            what, _, detail = step.partition(":")
            if what == "sleep":
                await asyncio.sleep(float(detail))
            elif what == "retry":
                batch.retry(message, int(detail))
            elif what == "dead_letter":
                batch.dead_letter(message, reason=detail)
            elif what == "ack":
                batch.ack(message)
            else:
                raised += _raised(what, detail)
        if raised:
            raise raised[0]


def in_a_thread(batch: Batch, options: dict[str, Any]) -> None:
    """A synchronous handler with a dict of options."""
    for message in batch:
        step = _note(Path(options["ledger"]), batch, message, greeting=options["greeting"])
        what, _, detail = step.partition(":")
        if what == "sleep":
            time.sleep(float(detail))
        for error in _raised(what, detail):
            raise error


def _raised(what: str, detail: str) -> list[Exception]:
    errors: dict[str, Exception] = {
        "raise": ValueError("as the message says"),
        "raise_retry": Retry(int(detail) if what == "raise_retry" else None),
        "raise_dead_letter": DeadLetter(detail),
        "raise_suspend": Suspend(float(detail) if what == "raise_suspend" else None),
    }
    return [errors[what]] if what in errors else []


def _note(ledger: Path, batch: Batch, message: Message, **more: object) -> str:
    """Record an attempt, and return the step of this attempt."""
    script = json.loads(message.body)
    line = {
        "id": script["id"], "times": message.reconsume_times, "at": time.time(), "topic": message.topic,
        "tags": message.tags, "queue": batch.message_queue.queue_id, "batch": [one.queue_offset for one in batch],
        "offset": message.queue_offset, "process": os.getpid(), **more,
    }  # fmt: skip
    with ledger.open("a") as file:
        file.write(json.dumps(line) + "\n")
    steps: list[str] = script["do"]
    return steps[min(message.reconsume_times, len(steps) - 1)]
