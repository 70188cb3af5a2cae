"""All checks of a history."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.judging.broadcasting import judge_homes
from tests.simulation.judging.drained import undrained
from tests.simulation.judging.ends import ends
from tests.simulation.judging.falls import falls
from tests.simulation.judging.frames import unread
from tests.simulation.judging.leaving import begun_late
from tests.simulation.judging.lost import lost, stuck
from tests.simulation.judging.order import disorder, overlaps
from tests.simulation.judging.popped import given_up_early, handled_again, late
from tests.simulation.judging.retries import dead_letters, too_early, too_many
from tests.simulation.judging.twice import twice
from tests.simulation.judging.warned import warned
from tests.simulation.judging.wrong import Wrong

if TYPE_CHECKING:
    from tests.simulation.history import History


def judge(history: History) -> tuple[list[Wrong], Counter[str]]:
    """Return the faults, and the number of duplicates by cause."""
    if history.plan.is_broadcasting:
        wrong, causes = judge_homes(history)
        return [*_of_members(history), *history.trial_wrong, *stuck(history), *wrong], causes
    if history.plan.way == "pop":
        again, causes = handled_again(history)
        wrong = [*_of_members(history), *history.trial_wrong, *lost(history), *stuck(history), *again, *late(history)]
        return [*wrong, *given_up_early(history)], causes
    repeated, causes = twice(history)
    wrong = [one for broker in history.brokers for one in broker.commits.wrong]
    wrong += [one for slave in history.slaves for one in slave.wrong]
    wrong += [*history.offsets.wrong, *history.trial_wrong, *lost(history), *stuck(history)]
    wrong += [*_of_members(history), *warned(history), *falls(history), *repeated]
    wrong += [*dead_letters(history), *too_many(history), *too_early(history)]
    if history.plan.repeats_in_place:
        wrong += disorder(history)
    if history.plan.way == "orderly":
        wrong += overlaps(history)
    return wrong, causes


def _of_members(history: History) -> list[Wrong]:
    """Return the faults of members, for every kind of group."""
    return [*ends(history), *undrained(history), *begun_late(history), *unread(history)]
