"""Warnings of members before the first failure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.judging.wrong import Wrong

if TYPE_CHECKING:
    from tests.simulation.history import History

_WARNING: Final = re.compile(
    r"(queue\.(lock_lost|consumed_elsewhere|handover_timed_out|restarted)|offset\.(commit_failed|illegal)) "
)
"""Members renew locks and release queues in time, while brokers and network work and handlers end."""


_SLOW_HAND_OVERS: Final = 0.1
"""From this share of slow deliveries, up to 1 s each, the ten of a hand-over may exceed `queue_handover_timeout`."""


def warned(history: History) -> Iterator[Wrong]:
    """Report the warnings before the first failure."""
    broken_at = min((history.unharmed_until, *(trouble.at for trouble in history.causes)))
    for at, who, what, _ in history.timeline.entries:
        if what.startswith("queue.handover_timed_out") and history.plan.slow >= _SLOW_HAND_OVERS:
            continue
        if at < broken_at and _WARNING.match(what):
            yield Wrong("warned", f"{who} at {at:.3f} s, and nothing had broken: {what}")
