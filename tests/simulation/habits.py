"""How handlers behave."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Habits:
    """The shares of batches that are slow, or fail."""

    most_seconds: float = 0.0
    slow: float = 0.0
    """The share of batches that take up to `slow_seconds`."""
    fails: float = 0.0
    """The share of batches that fail."""
    poison: float = 0.0
    """The share of messages that always fail."""
    verdicts: float = 0.0
    """The share of batches with another outcome: a dead letter, a single retry, a suspension or an ack index."""
    slow_seconds: float = 4.0
