"""What came of a history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.judging.wrong import Wrong
from tests.simulation.plan import Plan


@dataclass(slots=True)
class Outcome:
    """What came of a plan."""

    plan: Plan
    digest: str
    seconds: float
    """Simulated."""
    handled: int
    twice: Counter[str]
    """Messages that were done more than once, by cause."""
    wrong: list[Wrong] = field(default_factory=list)
    lines: Callable[[frozenset[str] | None], list[str]] = lambda _: []
    """The timeline, of all messages or of those with these keys."""
