"""Commits below the stored offset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.judging.wrong import Wrong

if TYPE_CHECKING:
    from tests.simulation.history import History

LOSSES: Final = frozenset(("crashed", "behind"))
"""Troubles that leave a broker, or its slave, with older offsets."""
MET_SECONDS: Final = 2.0
"""How long it may take to read the stored offset and to commit after it: the network takes a second for each way."""


def falls(history: History) -> Iterator[Wrong]:
    """Commits below the stored offset without an operator's reset, or a trouble that delays commits.

    An offset that a broker or its slave lost, or never had, excuses nothing: a member that read an older offset there
    reads the stored one before it commits. But then a queue may have two owners, and one may commit between the other's
    read and commit.
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
