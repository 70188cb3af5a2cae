"""The outcome of a history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.judging.wrong import Wrong
from tests.simulation.plan import Plan


@dataclass(slots=True)
class Outcome:
    """The outcome of a plan."""

    plan: Plan
    digest: str
    seconds: float
    """The duration in simulated seconds."""
    handled: int
    twice: Counter[str]
    """The number of messages that were handled more than once, by cause."""
    wrong: list[Wrong] = field(default_factory=list)
    lines: Callable[[frozenset[str] | None], list[str]] = lambda _: []
    """Returns the timeline of all messages, or of those with these keys."""
