"""Limits for reading routes and resets: far above real RocketMQ clusters, and small enough to be held in memory.

RocketMQ has no such limits. A route that exceeds them is from a damaged or hostile name server, or from a topic that
was created by mistake. Every queue costs each consumer some kilobytes and a task.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rmqd.errors import ProtocolError

MOST_QUEUES: Final = 65_536  # for one topic, on all its brokers
MOST_BROKERS: Final = 4_096  # serving one topic
MOST_ROUTE_BYTES: Final = 4 * 1024 * 1024  # in one body
MOST_ROUTE_OBJECTS: Final = 16 * MOST_BROKERS  # in one body; each costs much more memory than its few bytes
MOST_RESET_BYTES: Final = 8 * 1024 * 1024  # in one body, which has an entry for every queue
MOST_RESET_OBJECTS: Final = 2 * MOST_QUEUES


def check_route_size(body: bytes) -> None:
    """Raise ProtocolError if the body of a route is too large to parse."""
    _check_body(body, "a route", MOST_ROUTE_BYTES, MOST_ROUTE_OBJECTS)


def check_reset_size(body: bytes) -> None:
    """Raise ProtocolError if the body of a reset is too large to parse."""
    _check_body(body, "a reset", MOST_RESET_BYTES, MOST_RESET_OBJECTS)


def _check_body(body: bytes, what: str, most_bytes: int, most_objects: int) -> None:
    if len(body) > most_bytes:
        raise ProtocolError(f"{what} of {len(body)} bytes is too large; at most {most_bytes} are read")
    objects = body.count(b"{") + body.count(b"[")
    if objects > most_objects:
        raise ProtocolError(f"{what} of {objects} objects is too large; at most {most_objects} are read")


def check_brokers(count: int) -> None:
    """Raise ProtocolError if a topic is on too many brokers."""
    if count > MOST_BROKERS:
        raise ProtocolError(f"a route names {count} brokers for one topic; at most {MOST_BROKERS} are read")


def check_queues(counts: Iterable[int]) -> None:
    """Raise ProtocolError if a topic has too many queues in total."""
    total = sum(counts)
    if total > MOST_QUEUES:
        raise ProtocolError(f"a route names {total} queues of one topic; at most {MOST_QUEUES} are read")
