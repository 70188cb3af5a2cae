"""How handlers behave."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Habits:
    """What of their batches handlers are slow at, and fail at."""

    most_seconds: float = 0.0
    slow: float = 0.0
    """How many batches in one take up to `slow_seconds`."""
    fails: float = 0.0
    """How many batches in one fail."""
    poison: float = 0.0
    """How many messages in one fail always."""
    verdicts: float = 0.0
    """How many batches in one end otherwise: a message given up, or retried alone, a rest, an ack index."""
    slow_seconds: float = 4.0
