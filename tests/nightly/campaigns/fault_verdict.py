"""The verdict over a fault run: lost messages, repetitions with their causes, and commits that fell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tests.nightly.campaigns.commits import LOG_RESOLUTION_MICROS, Commit, History, LogLine, unexplained_falls
from tests.nightly.campaigns.verdict import STORED_TWICE, Handling, Handlings, Verdict, listed
from tests.rocketmq.ledger import FAIL, Entry

STARTS, FELL = "queue.started", "offset.fell"

CUT_SHORT = "its queue was given up while it was handled"
NOT_COMMITTED = "its queue changed owner before the commit"
BROKER_FORGOT = "its queue was taken over at less than was committed"
SENT_BACK = "it came by the retry topic"
TWO_OWNERS = "both members briefly owned its queue"
SAME_OWNERSHIP = "again within one ownership of its queue"

# handlers neither fail nor time out, and within one ownership no member pulls below its offset
FORBIDDEN = (SENT_BACK, SAME_OWNERSHIP)


@dataclass(frozen=True, slots=True)
class FaultVerdict(Verdict):
    """The judged ledger, commits and logs of a fault run."""

    forbidden = FORBIDDEN

    falls: list[str]
    """Commits that fell within one ownership, or at an acquisition without an `offset.fell` in the log."""
    fell_at_takeover: int
    """Falls that the log reports: an acquired queue begins at the broker's offset."""

    def broken(self) -> list[str]:
        """Commits that fell."""
        return self.falls

    def details(self) -> list[str]:
        return listed(f"commits that fell (told of at a take-over: {self.fell_at_takeover})", self.falls)


def judge(
    sent: Collection[str], entries: Iterable[Entry], commits: Sequence[Commit], log: Iterable[LogLine]
) -> FaultVerdict:
    """Judge a run. `entries` and `commits` are in the order of time; `log` has STARTS and FELL of every member."""
    lines = sorted(log, key=lambda line: line.at_micros)
    fell = [line for line in lines if line.event == FELL]
    handlings = Handlings(entries)
    evidence = _Evidence(handlings, commits, lines)
    falls = unexplained_falls(commits, fell)
    return FaultVerdict.of(sent, handlings, evidence.cause, falls=falls, fell_at_takeover=len(fell))


class _Evidence:
    """Ledger, commits and log, indexed for lookups."""

    def __init__(self, handlings: Iterable[Handling], commits: Iterable[Commit], lines: Iterable[LogLine]) -> None:
        self._history = History(commits)
        self._failed = {(one.begin.member, one.begin.key) for one in handlings if one.outcome == FAIL}
        self._starts: dict[tuple[str, str], list[int]] = defaultdict(list)
        for line in lines:
            if line.event == STARTS:
                _, _, place = line.place.rpartition("@")
                self._starts[line.member, place].append(line.at_micros)

    def cause(self, before: Handling, after: Handling) -> str:
        first, again = before.begin, after.begin
        if again.reconsume_times > first.reconsume_times:
            return SENT_BACK
        if (first.broker, first.queue, first.offset) != (again.broker, again.queue, again.offset):
            return STORED_TWICE
        if not self._taken_over_between(first, again):
            return SAME_OWNERSHIP if first.member == again.member else TWO_OWNERS
        if (first.member, first.key) in self._failed:
            return CUT_SHORT
        committed = self._history.committed(again.broker, again.queue, again.at_micros)
        return BROKER_FORGOT if committed > again.offset else NOT_COMMITTED

    def _taken_over_between(self, first: Entry, again: Entry) -> bool:
        starts = self._starts[again.member, f"{again.broker}:{again.queue}"]
        earliest = first.at_micros - LOG_RESOLUTION_MICROS
        return any(earliest <= at <= again.at_micros for at in starts)
