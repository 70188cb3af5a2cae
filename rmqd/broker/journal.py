"""The small state that survives the process: a row for each topic, group, offset and so on, beside the messages."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Protocol


class Kind(StrEnum):
    """The kinds of rows in the journal."""

    TOPIC = "topic"
    STATIC_TOPIC = "static_topic"
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
    BATCH = "batch"
    LIGHT = "light"
    LIGHT_QUEUE = "light_queue"


class Journal(Protocol):
    """Keeps small state by kind and key.

    All that is put in one turn of the event loop becomes durable together with the messages stored in that turn, before
    any reply of the turn is sent.
    """

    def put(self, kind: Kind, key: str, value: str) -> None:
        """Store a value, and replace the former one."""

    def delete(self, kind: Kind, key: str) -> None:
        """Forget a value; no error where there is none."""

    def items(self, kind: Kind) -> Iterator[tuple[str, str]]:
        """The values of a kind that were stored before this start, by key."""


class NoJournal:
    """The journal of a broker in memory: it keeps nothing."""

    def put(self, kind: Kind, key: str, value: str) -> None:
        """Keep nothing: without a data dir, all is in memory only."""

    def delete(self, kind: Kind, key: str) -> None:
        """Do nothing: no value is kept."""

    def items(self, kind: Kind) -> Iterator[tuple[str, str]]:
        """Return an empty mapping: no value is kept."""
        return iter(())
