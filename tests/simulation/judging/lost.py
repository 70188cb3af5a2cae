"""Messages that no member finished, and groups that are stuck."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.judging.wrong import Wrong

if TYPE_CHECKING:
    from tests.simulation.history import History

REST_SECONDS: Final = 200.0
"""How long a group may be idle in total after the last failure, until it has handled all messages."""


def lost(history: History) -> Iterator[Wrong]:
    """Messages that were sent, but neither handled nor dead-lettered."""
    stored = history.stored()
    for key in sorted(history.sent - stored.keys()):
        yield Wrong("lost by a broker, which is a fault of the simulation", key, frozenset((key,)))
    for key, places in stored.items():
        if history.passed.is_settled(key, places):
            continue
        if not history.ledger.is_done(key):
            yield Wrong("lost", f"{key} at {', '.join(map(str, places))}", frozenset((key,)))
        for reset in history.passed.unheeded(key, places):
            yield Wrong(
                "reset", f"{key} of {', '.join(map(str, places))} was not redelivered after {reset}", frozenset((key,))
            )


def stuck(history: History) -> Iterator[Wrong]:
    """Report a group that did not come to rest."""
    if history.idle_seconds > REST_SECONDS + history.due_seconds:
        waiting = frozenset(key for key, at in history.stored().items() if not history.is_settled(key, at))
        yield Wrong("stuck", f"nothing came for {history.idle_seconds:.0f} s, and messages were left", waiting)
