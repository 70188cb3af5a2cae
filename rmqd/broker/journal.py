"""What survives the process: one row per topic, group, offset and so on, beside the messages' records."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Protocol


class Kind(StrEnum):
    """What a row of the journal's table is about."""

    TOPIC = "topic"
    GROUP = "group"
    FORBIDDEN = "forbidden"
    REQUEST_MODE = "request_mode"
    OFFSET = "offset"
    RESET = "reset"
    DELAY = "delay"
    TIMER = "timer"
    POPPED = "popped"
    POP_ORDER = "pop_order"
    KEY_VALUE = "key_value"
    QUEUE = "queue"
    LOG = "log"


class Journal(Protocol):
    """Keeps small state by kind and key. What is put during one turn of the loop becomes durable together, with the
    records stored in it, before any reply of that turn leaves."""

    def put(self, kind: Kind, key: str, value: str) -> None:
        """Keep a value, in place of what was there."""

    def delete(self, kind: Kind, key: str) -> None:
        """Forget a value; no error where there is none."""

    def items(self, kind: Kind) -> Iterator[tuple[str, str]]:
        """What was kept before this start, by key."""


class NoJournal:
    """Of a broker that lives in memory only."""

    def put(self, kind: Kind, key: str, value: str) -> None:
        """Keep nothing."""

    def delete(self, kind: Kind, key: str) -> None:
        """Nothing is kept."""

    def items(self, kind: Kind) -> Iterator[tuple[str, str]]:
        """Nothing was kept."""
        return iter(())
