"""All that is wrong with a history."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.judging.ends import ends
from tests.simulation.judging.lost import lost, stuck
from tests.simulation.judging.order import disorder, overlaps
from tests.simulation.judging.retries import dead_letters, too_early, too_many
from tests.simulation.judging.twice import twice
from tests.simulation.judging.wrong import Wrong

if TYPE_CHECKING:
    from tests.simulation.history import History


def judge(history: History) -> tuple[list[Wrong], Counter[str]]:
    """What is wrong, and the messages that were done twice, by cause."""
    repeated, causes = twice(history)
    wrong = [*history.commits.wrong, *ends(history), *lost(history), *stuck(history), *repeated]
    wrong += [*dead_letters(history), *too_many(history), *too_early(history)]
    if history.plan.way == "orderly":
        wrong += [*disorder(history), *overlaps(history)]
    return wrong, causes
