"""The table of all planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, overload

import pytest

from tests.simulation.plan import Plan

Plant = Callable[[pytest.MonkeyPatch], None]
Needs = Callable[[Plan], bool]

PLANTED: Final[dict[str, Plant]] = {}
NEEDS: Final[dict[str, Needs]] = {}
"""The kind of history that can show a bug. Bugs that every kind can show have no entry."""


@overload
def plant(function: Plant) -> Plant: ...
@overload
def plant(*, needs: Needs) -> Callable[[Plant], Plant]: ...
def plant(function: Plant | None = None, *, needs: Needs | None = None) -> Plant | Callable[[Plant], Plant]:
    """Register a bug by its function's name. The function puts it into rmqd; undoing the patch removes it."""

    def register(function: Plant) -> Plant:
        name = function.__name__
        if name in PLANTED:
            raise ValueError(f"two planted bugs are called {name}")
        PLANTED[name] = function
        if needs is not None:
            NEEDS[name] = needs
        return function

    return register if function is None else register(function)


def orderly(plan: Plan) -> bool:
    """An orderly group."""
    return plan.way == "orderly"


def concurrently(plan: Plan) -> bool:
    """A group without an order."""
    return plan.way == "concurrently"


def by_key(plan: Plan) -> bool:
    """A group with `order_by`."""
    return plan.has_lanes


def pops(plan: Plan) -> bool:
    """A group that pops."""
    return plan.way == "pop"


def slow(plan: Plan) -> bool:
    """Handlers that are sometimes slow."""
    return plan.habits.slow > 0


def breaks(*troubles: str) -> Needs:
    """Return a check for histories with one of these troubles."""
    return lambda plan: any(event.what in troubles for event in plan.events)


def calm(plan: Plan) -> bool:
    """A history in which nothing breaks, so no duplicate is excused."""
    return not plan.troubles


def happens(*names: str, least: int = 1) -> Needs:
    """Return a check for histories with at least so many of these events in total."""
    return lambda plan: sum(event.what in names for event in plan.events) >= least


def never(*names: str) -> Needs:
    """Return a check for histories without these events."""
    return lambda plan: not any(event.what in names for event in plan.events)


def both(*needs: Needs) -> Needs:
    """Return a check for histories that meet all conditions."""
    return lambda plan: all(need(plan) for need in needs)


def either(*needs: Needs) -> Needs:
    """Return a check for histories that meet one condition."""
    return lambda plan: any(need(plan) for need in needs)


def tries(*trials: str) -> Needs:
    """Return a check for histories that end with one of these trials."""
    return lambda plan: any(trial in trials for trial in plan.trials)


def fails(plan: Plan) -> bool:
    """Handlers that fail for some messages."""
    return max(plan.habits.fails, plan.habits.poison, plan.habits.verdicts) > 0


def pulled(plan: Plan) -> bool:
    """A clustering group that pulls, with rmqd members only."""
    return not (pops(plan) or plan.is_broadcasting or plan.java)


def behind(plan: Plan) -> bool:
    """An overloaded group: messages wait in its members."""
    return (plan.concurrency, plan.batch_size) == (1, 1) and plan.habits.most_seconds >= 0.2


hands_over: Final = both(
    calm, pulled, happens("join", "leave", least=4), never("reset", "reset_alone", "reset_by_push", "hold")
)
"""Queues that move between members, in histories in which no duplicate is excused."""
