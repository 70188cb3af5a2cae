"""Commits below what a broker has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.judging.wrong import Wrong

if TYPE_CHECKING:
    from tests.simulation.history import History

LOSSES: Final = frozenset(("crashed", "behind"))
"""Troubles by which a broker, or its slave, has older offsets than it had."""
MET_SECONDS: Final = 2.0
"""How long a look at what is stored and the commit behind it may take: the network takes a second for each way."""


def falls(history: History) -> Iterator[Wrong]:
    """Commits below what was stored, without an operator's reset, or a trouble that makes commits late.

    What a broker or its slave has lost, or never had, is no reason: whoever read an older offset there looks at what is
    stored before it commits. But then a queue may have two owners, and one may commit between the other's look and
    commit.
    """
    for fall in history.offsets.falls:
        has_met = fall.at - fall.since < MET_SECONDS
        is_late = any(
            (has_met or one.what not in LOSSES) and one.explains_lower(fall.broker, fall.at) for one in history.causes
        )
        is_late = is_late or history.java.explains_lower(fall.broker, fall.queue, fall.at)
        if not is_late and not history.passed.was_reset(fall.broker, fall.queue, fall.at):
            about = f"{fall.broker} queue {fall.queue} from {fall.former} to {fall.offset} at {fall.at:.3f} s"
            yield Wrong("fell", about)
