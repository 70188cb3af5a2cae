"""The verdict over a ledger of a group that pops: what was lost, and what was handled again and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from tests.campaigns.members import KILL, MemberEvent
from tests.campaigns.verdict import told
from tests.rocketmq.ledger import FINISH, START, Entry

KILLED = "the member was killed with -9"
SWITCHED = "the group was switched between POP and PULL"
SEEN_AGAIN = "acknowledged, and seen again"
NOT_HIDDEN = "shown to others while a handler had it"

FORBIDDEN = (SEEN_AGAIN, NOT_HIDDEN)
HEARD_SECONDS = 5.0
"""What a member finished so shortly before it was killed, its broker may not have heard of."""


@dataclass(frozen=True, slots=True)
class PopVerdict:
    """What a ledger says."""

    sent: int
    lost: list[str]
    repeated: Counter[str]
    """Second and later deliveries, by cause."""
    examples: dict[str, tuple[Entry, Entry]]
    """For each cause one pair of deliveries of one message."""

    @property
    def passed(self) -> bool:
        """Nothing lost, and nothing repeated that must not be."""
        return not self.lost and not any(self.repeated[cause] for cause in FORBIDDEN)

    def report(self) -> str:
        """For the person who ran it."""
        return "\n".join(told(self.sent, self.lost, self.repeated, self.examples, FORBIDDEN))


@dataclass(slots=True)
class _Delivery:
    """One call of a handler; `finished_at` is None where it did not come to its end."""

    entry: Entry
    finished_at: int | None = None


@dataclass(slots=True)
class _Key:
    deliveries: list[_Delivery] = field(default_factory=list)

    def finish(self, entry: Entry) -> None:
        """The last call of that member has ended."""
        for delivery in reversed(self.deliveries):
            if delivery.entry.member == entry.member:
                delivery.finished_at = entry.at_micros
                return


def judge_pops(
    sent: Collection[str], entries: Sequence[Entry], events: Iterable[MemberEvent], switches: Iterable[int] = ()
) -> PopVerdict:
    """Judge a run; `entries` are in the order of time, `switches` are microseconds since 1970."""
    killed = {event.member: event.at_micros for event in events if event.action == KILL}
    switched = sorted(switches)
    keys: defaultdict[str, _Key] = defaultdict(_Key)
    for entry in entries:
        if entry.event == START:
            keys[entry.key].deliveries.append(_Delivery(entry))
        elif entry.event == FINISH:
            keys[entry.key].finish(entry)
    repeated: Counter[str] = Counter()
    examples: dict[str, tuple[Entry, Entry]] = {}
    for key in keys.values():
        for first, again in zip(key.deliveries, key.deliveries[1:], strict=False):
            cause = _cause(first, again.entry, killed.get(first.entry.member), switched)
            repeated[cause] += 1
            examples.setdefault(cause, (first.entry, again.entry))
    finished = {name for name, key in keys.items() if any(one.finished_at is not None for one in key.deliveries)}
    return PopVerdict(len(sent), sorted(set(sent) - finished), repeated, examples)


def _cause(first: _Delivery, again: Entry, killed_at: int | None, switches: Sequence[int]) -> str:
    ended = first.finished_at
    if killed_at is not None and (ended is None or killed_at - ended <= HEARD_SECONDS * 1e6):
        return KILLED
    # what was popped before a switch may come again after it, and what was pulled and not committed as well
    if any(at <= again.at_micros for at in switches):
        return SWITCHED
    return NOT_HIDDEN if ended is None or ended > again.at_micros else SEEN_AGAIN
