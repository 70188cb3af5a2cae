"""The small state that survives the process, next to the messages: a row for each topic, group, offset and so on."""

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
    """Stores small state by kind and key.

    All changes of one turn of the event loop become durable together with the messages of that turn, before any
    response of the turn is sent.
    """

    def put(self, kind: Kind, key: str, value: str) -> None:
        """Store a value, replacing the previous one."""

    def delete(self, kind: Kind, key: str) -> None:
        """Delete a value, if it exists."""

    def items(self, kind: Kind) -> Iterator[tuple[str, str]]:
        """Return the values of a kind, by key, that were stored before this start."""


class NoJournal:
    """The journal of a broker in memory: it stores nothing."""

    def put(self, kind: Kind, key: str, value: str) -> None:
        """Do nothing: without a data dir, all state is only in memory."""

    def delete(self, kind: Kind, key: str) -> None:
        """Do nothing."""

    def items(self, kind: Kind) -> Iterator[tuple[str, str]]:
        """Return an empty iterator."""
        return iter(())
