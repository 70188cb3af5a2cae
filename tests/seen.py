"""A handler that records its messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.waiting import eventually


@dataclass(frozen=True, slots=True)
class Handled:
    """An attempt at a message, as a handler saw it."""

    topic: str
    body: bytes
    queue: MessageQueue
    offset: int
    reconsume_times: int
    properties: dict[str, str]
    at: float

    @property
    def key(self) -> str:
        return self.properties["KEYS"]

    @property
    def delay_level(self) -> str | None:
        """The delay level of the last send-back."""
        return self.properties.get("DELAY")


class Seen:
    """Records every attempt. A handler that must fail calls it first."""

    def __init__(self) -> None:
        self.attempts: list[Handled] = []

    async def __call__(self, batch: Batch) -> None:
        self.take(batch)

    def take(self, batch: Batch) -> None:
        """Record a batch; also the synchronous handler."""
        now = time.monotonic()
        self.attempts += [
            Handled(m.topic, m.body, m.message_queue, m.queue_offset, m.reconsume_times, dict(m.properties), now)
            for m in batch
        ]

    def handler(self, *, is_async: bool) -> Callable[[Batch], Any]:
        """Return the asynchronous or the synchronous handler."""
        return self if is_async else self.take

    @property
    def bodies(self) -> list[bytes]:
        return [attempt.body for attempt in self.attempts]

    @property
    def keys(self) -> list[str]:
        return [attempt.key for attempt in self.attempts]

    def of(self, key: str) -> list[Handled]:
        return [attempt for attempt in self.attempts if attempt.key == key]

    async def has(self, *bodies: bytes) -> None:
        """Wait until exactly these messages were handled, in this order."""
        try:
            await eventually(lambda: self.bodies == list(bodies), f"{bodies} are handled")
        except AssertionError as error:
            error.add_note(f"it is {self.bodies}")
            raise
