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
"""What a history must have so that a bug can show in it at all; for bugs that show in every kind there is none."""


@overload
def plant(function: Plant) -> Plant: ...
@overload
def plant(*, needs: Needs) -> Callable[[Plant], Plant]: ...
def plant(function: Plant | None = None, *, needs: Needs | None = None) -> Plant | Callable[[Plant], Plant]:
    """Have a bug found by its function's name. The function puts it into rmqd; the patch takes it out again."""

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
    """Handlers that take long now and then."""
    return plan.habits.slow > 0


def breaks(*troubles: str) -> Needs:
    """Histories in which one of these happens."""
    return lambda plan: any(event.what in troubles for event in plan.events)


def calm(plan: Plan) -> bool:
    """Nothing breaks, so that nothing is excused."""
    return not plan.troubles


def happens(*names: str, least: int = 1) -> Needs:
    """Histories in which these happen so often at least, taken together."""
    return lambda plan: sum(event.what in names for event in plan.events) >= least


def never(*names: str) -> Needs:
    """Histories in which none of these happens."""
    return lambda plan: not any(event.what in names for event in plan.events)


def both(*needs: Needs) -> Needs:
    """Histories that have all of it."""
    return lambda plan: all(need(plan) for need in needs)


def either(*needs: Needs) -> Needs:
    """Histories that have one of these."""
    return lambda plan: any(need(plan) for need in needs)


def tries(*trials: str) -> Needs:
    """Histories that end with one of these trials."""
    return lambda plan: any(trial in trials for trial in plan.trials)


def fails(plan: Plan) -> bool:
    """Handlers that fail at some messages."""
    return max(plan.habits.fails, plan.habits.poison, plan.habits.verdicts) > 0


def pulled(plan: Plan) -> bool:
    """A clustering group of rmqd's members alone, which pulls."""
    return not (pops(plan) or plan.is_broadcasting or plan.java)


def behind(plan: Plan) -> bool:
    """A group that has more to do than it can: messages wait in its members."""
    return (plan.concurrency, plan.batch_size) == (1, 1) and plan.habits.most_seconds >= 0.2


hands_over: Final = both(
    calm, pulled, happens("join", "leave", least=4), never("reset", "reset_alone", "reset_by_push", "hold")
)
"""Queues that go from member to member, where nothing is an excuse for what is done twice."""
