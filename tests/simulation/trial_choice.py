"""The choice of a history's trials, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.simulation.plan import Plan

TRIED: Final = 0.3
"""The share of histories with trials, which take longer than the rest of a history."""
TRIALS: Final = (
    "join", "leave", "kill", "crash", "cut", "crowd", "visit", "glances", "mute", "part", "lose", "unlisted", "reset"
)  # fmt: skip
OFFSET_TRIALS: Final = (
    "refuse_commits", "delay_commits", "lose_offsets", "overstay", "hand_over_late", "suspend", "suspend_and_leave",
    "rewind", "rewind_by_push", "rewind_the_last", "rewind_behind_a_filter",
)  # fmt: skip
OF_POPS: Final = "join", "leave", "kill", "crash", "cut", "visit", "glances", "mute"
OF_JAVA: Final = "join", "leave", "kill", "crash", "cut", "crowd"
OF_BROADCASTING: Final = "crash", "cut", "mute"
"""Each machine of a broadcasting group must handle all messages, so none may lack a process."""
LAST_TRIALS: Final[dict[str, tuple[str, ...]]] = {
    "concurrently": ("move", "busy", "blink", "refuse"),
    "orderly": ("move", "busy", "win_back", "lose_locks", "restart", "restart_and_join"),
}
"""If there are trials, one of these is the last. Most of them are hand-overs at bad moments."""


def with_trials(plan: Plan) -> Plan:
    """Return the plan with its trials, and with a small cache if a trial fills it."""
    chance = random.Random(f"{plan.seed} trials")
    if chance.random() > TRIED:
        return plan
    if plan.is_broadcasting or plan.java or plan.way not in LAST_TRIALS:
        those = OF_BROADCASTING if plan.is_broadcasting else OF_JAVA if plan.java else OF_POPS
        return replace(plan, trials=("nothing", *chance.sample(those, 2)))
    trials = "nothing", *chance.sample((*TRIALS, *OFFSET_TRIALS) if plan.auto_commit else TRIALS[:-1], 2)
    most_cached = chance.choice((10, 30, 1000))
    if most_cached == 1000 or not plan.auto_commit:  # a handler with late commits would wait forever
        return replace(plan, trials=trials)
    return replace(plan, most_cached=most_cached, trials=(*trials, "flood"))


def with_last_trial(plan: Plan) -> Plan:
    """Return the plan with one more trial, if there are trials."""
    # Uncommitted messages of a handler are not judged, and slaves stand in for brokers that restart.
    if not plan.trials or not plan.auto_commit or plan.slaves:
        return plan
    if plan.is_broadcasting or plan.java or plan.way not in LAST_TRIALS:
        return plan
    chance = random.Random(f"{plan.seed} last trial")
    return replace(plan, trials=(*plan.trials, chance.choice(LAST_TRIALS[plan.way])))
