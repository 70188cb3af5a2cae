"""Shrinks a plan that fails to the shortest plan that still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from tests.simulation.habits import Habits
from tests.simulation.happenings import HAPPENINGS
from tests.simulation.plan import Event, Plan, Popping


def _of_no_part(plan: Plan, part: str) -> Iterable[Event]:
    return (event for event in plan.events if HAPPENINGS[event.what].part != part)


def _earlier(plan: Plan) -> Plan:
    """Move all events so that the first one happens after 5 s."""
    first = min((event.at for event in plan.events), default=5.0)
    return replace(plan, events=tuple(event._replace(at=event.at - first + 5.0) for event in plan.events))


SIMPLER: Final[dict[str, Callable[[Plan], Plan]]] = {
    "network": lambda plan: replace(plan, slow=0.0, pieces=0.0),
    "commits_in_time": lambda plan: replace(plan, late_commits=0.0),
    "handler": lambda plan: replace(plan, habits=Habits()),
    "one_broker": lambda plan: replace(plan, queues=plan.queues[:1]),
    "one_name_server": lambda plan: replace(plan, name_servers=1),
    "no_slaves": lambda plan: replace(plan, slaves=None, events=tuple(_of_no_part(plan, "slaves"))),
    "one_queue": lambda plan: replace(plan, queues=(1,) * len(plan.queues)),
    "no_decisions": lambda plan: replace(plan, habits=replace(plan.habits, verdicts=0.0), auto_commit=True),
    "no_lanes": lambda plan: replace(plan, has_lanes=False),
    "popping": lambda plan: replace(plan, popping=Popping(plan.popping.invisible_seconds)),
    "one_slot": lambda plan: replace(plan, concurrency=1, batch_size=1),
    "few_messages": lambda plan: replace(plan, most_messages=20),
    "no_trials": lambda plan: replace(plan, trials=()),
    "early": _earlier,
    "short": lambda plan: replace(plan, seconds=max((event.at for event in plan.events), default=5.0) + 5.0),
}
"""Simplifications of a plan, by their names in `--simpler`."""


def shrink(plan: Plan, is_wrong: Callable[[Plan], bool]) -> tuple[Plan, list[str]]:
    """Remove events and simplify the rest while the same failure occurs. Return the plan and the names from SIMPLER."""
    plan = _fewer_events(plan, is_wrong)
    names = []
    for name, simpler in SIMPLER.items():
        other = simpler(plan)
        if other != plan and is_wrong(other):
            plan = other
            names.append(name)
    return _fewer_events(plan, is_wrong), names


def _fewer_events(plan: Plan, is_wrong: Callable[[Plan], bool]) -> Plan:
    """Remove halves of the events, then quarters and so on, down to single events."""
    size = max(1, len(plan.events) // 2)
    while True:
        at = 0
        while at < len(plan.events):
            kept = [event.number for event in (*plan.events[:at], *plan.events[at + size :])]
            shorter = plan.only(kept)
            if is_wrong(shorter):
                plan = shorter
            else:
                at += size
        if size == 1:
            return plan
        size //= 2
