"""A plan in which something is wrong, made as short as it goes."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.plan import SIMPLER, Plan


def shrink(plan: Plan, is_wrong: Callable[[Plan], bool]) -> tuple[Plan, list[str]]:
    """Leave out events, and make the rest simpler, as long as the same is wrong. Returns the names from SIMPLER too."""
    plan = _fewer_events(plan, is_wrong)
    names = []
    for name, simpler in SIMPLER.items():
        other = simpler(plan)
        if other != plan and is_wrong(other):
            plan = other
            names.append(name)
    return _fewer_events(plan, is_wrong), names


def _fewer_events(plan: Plan, is_wrong: Callable[[Plan], bool]) -> Plan:
    """Leave out halves, then quarters and so on, down to single events."""
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
