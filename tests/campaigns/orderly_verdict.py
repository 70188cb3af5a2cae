"""The verdict over a ledger of orderly consumption: whether the order was kept, and each queue had one member."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.campaigns.members import JAVA, KILL, LEFT, MemberEvent
from tests.campaigns.verdict import JAVA_GAVE_UP, KILLED, SAME_MEMBER
from tests.rocketmq.ledger import FAIL, FINISH, START, Entry, sharding

FAILED = "the attempt before failed"
STORED_TWICE = "the topic has it twice"
RMQD_GAVE_UP = "an rmqd member gave the queue up"

FORBIDDEN = (SAME_MEMBER, RMQD_GAVE_UP)
SHOWN = 10


@dataclass(slots=True)
class Handling:
    """One attempt at one message by one member, from its begin to its end, in microseconds since 1970."""

    begin: Entry
    end_micros: int | None = None
    outcome: str = ""
    """FINISH or FAIL; empty where the member ended in the middle."""

    @property
    def queue(self) -> tuple[str, int]:
        """Broker and number."""
        return self.begin.broker, self.begin.queue

    def __str__(self) -> str:
        """For the report."""
        begin = self.begin
        return f"{begin.key} at {begin.broker}/{begin.queue} by {begin.member} at {begin.at_micros}..{self.end_micros}"


@dataclass(frozen=True, slots=True)
class OrderlyVerdict:
    """What a ledger says."""

    sent: int
    lost: list[str]
    disordered: list[str]
    """Messages that were begun before the one before them in their sharding key was finished, with the evidence."""
    overlapping: list[str]
    """Attempts that two members made at once in one queue."""
    repeated: Counter[str]
    """Second and later attempts, by cause."""
    examples: dict[str, tuple[Handling, Handling]]
    """For each cause one pair of attempts at one message."""
    longest_wait_seconds: float
    """The longest time from the send of a message to its first attempt."""

    @property
    def passed(self) -> bool:
        """Nothing lost, every order kept, no queue with two members, no repetition that rmqd promises not to cause."""
        broken = self.lost or self.disordered or self.overlapping
        return not broken and not any(self.repeated[cause] for cause in FORBIDDEN)

    def report(self) -> str:
        """For the person who ran it."""
        lines = [
            f"sent {self.sent}, lost {len(self.lost)}{''.join(f' {key}' for key in self.lost[:SHOWN])}",
            f"longest wait of a message {self.longest_wait_seconds:.1f} s",
            f"out of order: {len(self.disordered)}",
            *(f"  {text}" for text in self.disordered[:SHOWN]),
            f"handled by two members at once: {len(self.overlapping)}",
            *(f"  {text}" for text in self.overlapping[:SHOWN]),
            f"handled again: {sum(self.repeated.values())}",
        ]
        for cause, count in self.repeated.most_common():
            lines.append(f"  {count:6} {cause}{' (FORBIDDEN)' if cause in FORBIDDEN else ''}")
            if cause in FORBIDDEN:
                lines += [f"         {handling}" for handling in self.examples[cause]]
        return "\n".join(lines)


@dataclass(slots=True)
class _Evidence:
    """The ledger, arranged for questions."""

    kinds: Mapping[str, str]
    killed: Mapping[str, int]
    by_key: dict[str, list[Handling]] = field(default_factory=lambda: defaultdict(list))
    by_queue: dict[tuple[str, int], list[Handling]] = field(default_factory=lambda: defaultdict(list))


def judge(sent: Sequence[Entry], entries: Iterable[Entry], events: Iterable[MemberEvent]) -> OrderlyVerdict:
    """Judge a run; `entries` are in the order of time, and every key of theirs has the form that `sharding` reads."""
    events = list(events)
    evidence = _Evidence(
        kinds={event.member: event.kind for event in events},
        killed={event.member: event.at_micros for event in events if event.action == KILL},
    )
    ends = {event.member: event.at_micros for event in events if event.action in (KILL, LEFT)}
    for handling in _handlings(entries, ends):
        evidence.by_key[handling.begin.key].append(handling)
        evidence.by_queue[handling.queue].append(handling)
    repeated: Counter[str] = Counter()
    examples: dict[str, tuple[Handling, Handling]] = {}
    for attempts in evidence.by_key.values():
        for before, again in itertools.pairwise(attempts):
            cause = _cause(evidence, before, again)
            repeated[cause] += 1
            examples.setdefault(cause, (before, again))
    finished = {key for key, attempts in evidence.by_key.items() if _first_finish(attempts) is not None}
    waits = [evidence.by_key[entry.key][0].begin.at_micros - entry.at_micros for entry in sent if entry.key in finished]
    return OrderlyVerdict(
        len(sent),
        sorted({entry.key for entry in sent} - finished),
        list(_disordered(evidence.by_key)),
        [text for handlings in evidence.by_queue.values() for text in _overlapping(handlings)],
        repeated,
        examples,
        max(waits, default=0) / 1e6,
    )


def _handlings(entries: Iterable[Entry], ends: Mapping[str, int]) -> list[Handling]:
    """Every attempt, in the order of their begins; one that a member's end cut short ends there."""
    found: list[Handling] = []
    running: dict[tuple[str, str], Handling] = {}
    for entry in entries:
        at = (entry.member, entry.key)
        if entry.event == START:
            if at in running:
                running[at].end_micros = entry.at_micros
            running[at] = Handling(entry)
            found.append(running[at])
        elif entry.event in (FINISH, FAIL) and at in running:
            running[at].end_micros, running[at].outcome = entry.at_micros, entry.event
            del running[at]
    for handling in found:
        if handling.end_micros is None:
            handling.end_micros = ends.get(handling.begin.member)
    return found


def _first_finish(attempts: Iterable[Handling]) -> int | None:
    return min((one.end_micros or 0 for one in attempts if one.outcome == FINISH), default=None)


def _disordered(by_key: Mapping[str, list[Handling]]) -> Iterator[str]:
    """The first attempt at a message must come after the first success with the one before it."""
    for key, attempts in by_key.items():
        name, number = sharding(key)
        if not number:
            continue
        before = by_key.get(f"{name}.{number - 1}", [])
        finished = _first_finish(before)
        if finished is None or finished > attempts[0].begin.at_micros:
            yield f"{attempts[0]}, before the end of {before[0] if before else f'{name}.{number - 1}, never begun'}"


def _overlapping(handlings: Iterable[Handling]) -> Iterator[str]:
    """Attempts in one queue, given in the order of their begins, that began during another member's."""
    running: list[Handling] = []
    for handling in handlings:
        begin = handling.begin
        running = [other for other in running if other.end_micros is None or other.end_micros > begin.at_micros]
        for other in running:
            if other.begin.member != begin.member:
                yield f"{handling}, during {other}"
        running.append(handling)


def _cause(evidence: _Evidence, before: Handling, again: Handling) -> str:
    first, second = before.begin, again.begin
    if first.offset != second.offset:
        return STORED_TWICE
    if before.outcome == FAIL or (first.member == second.member and second.reconsume_times > first.reconsume_times):
        return FAILED
    killed = evidence.killed.get(first.member)
    if killed is not None and killed <= second.at_micros and not _given_up(evidence, before, killed):
        return KILLED
    if evidence.kinds.get(first.member) == JAVA:
        return JAVA_GAVE_UP
    return SAME_MEMBER if first.member == second.member else RMQD_GAVE_UP


def _given_up(evidence: _Evidence, handling: Handling, until_micros: int) -> bool:
    """Whether another member had the queue after this attempt and before that time; then its offset was committed."""
    in_queue = evidence.by_queue[handling.queue]
    after = bisect.bisect_right(in_queue, handling.begin.at_micros, key=lambda other: other.begin.at_micros)
    between = itertools.takewhile(lambda other: other.begin.at_micros < until_micros, in_queue[after:])
    return any(other.begin.member != handling.begin.member for other in between)
