"""Messages delivered to handlers of a member that leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.judging.wrong import Wrong

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.ledger import Call, Ledger

LEFT_SECONDS: Final = 0.1
"""How long a member may need to notice that it must leave."""


def begun_late(history: History) -> Iterator[Wrong]:
    """Messages that a handler received long after its member was asked to leave, unless the member was suspended.

    With `order_by`, a handler still receives messages that precede a message it already had, so that the next owner
    repeats nothing.
    """
    left = {who: at for at, who, what, _ in history.timeline.entries if what.startswith("leaves")}
    of_rmqd = {member.name for member in history.former if member.snapshot() is not None}
    suspended = {name for one in history.causes if one.what == "paused" for name in one.who}
    for ledger in history.ledgers:
        for key, calls in ledger.calls.items():
            for call in calls:
                at = left.get(call.member, float("inf"))
                if call.began <= at + LEFT_SECONDS or call.member not in of_rmqd - suspended:
                    continue
                if not (history.plan.has_lanes and _is_below_another(ledger, call)):
                    about = f"{call.member} was asked to leave at {at:.3f} s, and began {key} at {call.began:.3f} s"
                    yield Wrong("begun late", about, frozenset((key,)))


def _is_below_another(ledger: Ledger, call: Call) -> bool:
    """Whether the member had received a later message of the queue before."""
    return any(
        other.member == call.member
        and other.place[:2] == call.place[:2]
        and other.place.offset > call.place.offset
        and other.began < call.began
        for calls in ledger.calls.values()
        for other in calls
    )
