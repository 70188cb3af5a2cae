"""The verdict over a ledger of a POP group: lost messages, and repetitions with their causes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tests.nightly.campaigns.members import KILL, MemberEvent
from tests.nightly.campaigns.verdict import KILLED, Handling, Handlings, Verdict
from tests.rocketmq.ledger import Entry

SWITCHED = "the group was switched between POP and PULL"
SEEN_AGAIN = "acknowledged, and seen again"
NOT_HIDDEN = "shown to others while a handler had it"

FORBIDDEN = (SEEN_AGAIN, NOT_HIDDEN)
HEARD_SECONDS = 5.0
"""The broker may have missed acknowledgements of messages finished less than this before a kill."""


@dataclass(frozen=True, slots=True)
class PopVerdict(Verdict):
    """The judged ledger of a POP group."""

    forbidden = FORBIDDEN


def judge(
    sent: Collection[str], entries: Iterable[Entry], events: Iterable[MemberEvent], switches: Iterable[int] = ()
) -> PopVerdict:
    """Judge a run. `entries` are in the order of time; `switches` are in microseconds since 1970."""
    killed = {event.member: event.at_micros for event in events if event.action == KILL}
    switched = list(switches)
    return PopVerdict.of(
        sent,
        Handlings(entries),
        lambda before, again: _cause(before, again.begin, killed.get(before.begin.member), switched),
    )


def _cause(first: Handling, again: Entry, killed_at: int | None, switches: Sequence[int]) -> str:
    ended = first.finished_micros
    if killed_at is not None and (ended is None or killed_at - ended <= HEARD_SECONDS * 1e6):
        return KILLED
    # popped messages, and pulled ones that were not committed, may be redelivered after a switch
    if any(at <= again.at_micros for at in switches):
        return SWITCHED
    return NOT_HIDDEN if ended is None or ended > again.at_micros else SEEN_AGAIN
