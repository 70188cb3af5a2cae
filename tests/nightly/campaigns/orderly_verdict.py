"""The verdict over a ledger of orderly consumption: the order of messages, and one member for each queue.

In a run with concurrent Java members (`judge_beside_concurrent`) a group with `order_by` has no locks, and Java handles
messages of a sharding key in parallel. So pairs of messages that such a member handled are not judged, nor are two
members in one queue at once. The causes of repetitions are those of a concurrent group.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tests.nightly.campaigns import churn_verdict
from tests.nightly.campaigns.members import JAVA, KILL, LEFT, MemberEvent
from tests.nightly.campaigns.verdict import (
    JAVA_GAVE_UP,
    KILLED,
    SAME_MEMBER,
    STORED_TWICE,
    Handling,
    Handlings,
    Verdict,
    listed,
)
from tests.rocketmq.ledger import FAIL, Entry, sharding

FAILED = "the previous attempt failed"
RMQD_GAVE_UP = "an rmqd member released the queue"

FORBIDDEN = (SAME_MEMBER, RMQD_GAVE_UP)


@dataclass(frozen=True, slots=True)
class OrderlyVerdict(Verdict):
    """The judged ledger of an orderly run."""

    forbidden: ClassVar[tuple[str, ...]] = FORBIDDEN

    disordered: list[str]
    """Messages begun before their predecessor in the sharding key was finished, with the evidence.

    Also attempts that a member began while it handled another message of the sharding key.
    """
    overlapping: list[str]
    """Simultaneous attempts of two members in one queue."""
    longest_wait_seconds: float
    """The longest time from the send of a message to its first attempt."""
    pairs: int
    """The number of judged pairs of consecutive messages of a sharding key."""
    left_out: int = 0
    """Pairs that are not judged, because a concurrent Java member handled one of their messages."""

    def broken(self) -> list[str]:
        """Broken orders, and queues with two members."""
        return self.disordered + self.overlapping

    def details(self) -> list[str]:
        """The longest wait, the number of pairs, and the first breaches."""
        return [
            f"longest wait of a message {self.longest_wait_seconds:.1f} s",
            f"pairs of a sharding key {self.pairs}, {self.left_out} more left out",
            *listed("out of order", self.disordered),
            *listed("handled by two members at once", self.overlapping),
        ]


@dataclass(frozen=True, slots=True)
class BesideConcurrentVerdict(OrderlyVerdict):
    """The judged ledger of a group with concurrent Java members."""

    forbidden = churn_verdict.FORBIDDEN


@dataclass(slots=True)
class _Evidence:
    """The ledger, indexed for lookups."""

    kinds: Mapping[str, str]
    killed: Mapping[str, int]
    handlings: Handlings


def judge(sent: Sequence[Entry], entries: Iterable[Entry], events: Iterable[MemberEvent]) -> OrderlyVerdict:
    """Judge a run. `entries` are in the order of time, with keys in the format of `sharding`."""
    events = list(events)
    handlings = _handlings(entries, events)
    evidence = _Evidence(
        kinds={event.member: event.kind for event in events},
        killed={event.member: event.at_micros for event in events if event.action == KILL},
        handlings=handlings,
    )
    pairs = list(_pairs(handlings))
    return OrderlyVerdict.of(
        [entry.key for entry in sent],
        handlings,
        lambda before, again: _cause(evidence, before, again),
        disordered=[*_disordered(pairs), *_at_once(handlings)],
        overlapping=[text for in_queue in handlings.by_queue.values() for text in _overlapping(in_queue)],
        longest_wait_seconds=_longest_wait_seconds(sent, handlings),
        pairs=len(pairs),
    )


def judge_beside_concurrent(
    sent: Sequence[Entry], entries: Iterable[Entry], events: Iterable[MemberEvent], handover_timeout_seconds: float
) -> BesideConcurrentVerdict:
    """Judge a run with concurrent Java members. The arguments are those of `judge`."""
    entries, events = list(entries), list(events)
    handlings = _handlings(entries, events)
    keys = [entry.key for entry in sent]
    again = churn_verdict.judge(keys, entries, events, (), handover_timeout_seconds)
    java = {event.member for event in events if event.kind == JAVA}
    pairs = list(_pairs(handlings))
    judged = [pair for pair in pairs if java.isdisjoint(one.begin.member for attempts in pair for one in attempts)]
    return BesideConcurrentVerdict(
        len(keys),
        again.lost,
        again.repeated,
        again.examples,
        disordered=[*_disordered(judged), *_at_once(one for one in handlings if one.begin.member not in java)],
        overlapping=[],
        longest_wait_seconds=_longest_wait_seconds(sent, handlings),
        pairs=len(judged),
        left_out=len(pairs) - len(judged),
    )


def _handlings(entries: Iterable[Entry], events: Iterable[MemberEvent]) -> Handlings:
    return Handlings(entries, {event.member: event.at_micros for event in events if event.action in (KILL, LEFT)})


def _longest_wait_seconds(sent: Iterable[Entry], handlings: Handlings) -> float:
    by_key, finished = handlings.by_key, handlings.finished
    waits = [by_key[entry.key][0].begin.at_micros - entry.at_micros for entry in sent if entry.key in finished]
    return max(waits, default=0) / 1e6


def _first_finish(attempts: Iterable[Handling]) -> int | None:
    return min((one.finished_micros for one in attempts if one.finished_micros is not None), default=None)


def _pairs(handlings: Handlings) -> Iterator[tuple[list[Handling], list[Handling]]]:
    """Yield the attempts at a message after those at its predecessor in the sharding key, which may have none."""
    for key, attempts in list(handlings.by_key.items()):
        name, number = sharding(key)
        if number:
            yield handlings.by_key.get(f"{name}.{number - 1}", []), attempts


def _disordered(pairs: Iterable[tuple[list[Handling], list[Handling]]]) -> Iterator[str]:
    """Check that the first attempt at a message follows the first success of its predecessor."""
    for before, attempts in pairs:
        finished = _first_finish(before)
        if finished is None or finished > attempts[0].begin.at_micros:
            yield f"{attempts[0]}, before the end of {before[0] if before else 'the one before it, never begun'}"


def _at_once(handlings: Iterable[Handling]) -> Iterator[str]:
    """Yield attempts during an earlier one of the same sharding key and member. Attempts are ordered by their begin."""
    last: dict[tuple[str, str], Handling] = {}
    for handling in handlings:
        of = sharding(handling.begin.key)[0], handling.begin.member
        before = last.get(of)
        if before is not None and (before.end_micros is None or before.end_micros > handling.begin.at_micros):
            yield f"{handling}, beside {before}"
        last[of] = handling


def _overlapping(handlings: Iterable[Handling]) -> Iterator[str]:
    """Yield attempts that began during another member's attempt in the queue. Attempts are ordered by their begin."""
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
    """Return whether another member had the queue after this attempt and before that time: its offset was committed."""
    in_queue = evidence.handlings.by_queue[handling.queue]
    after = bisect.bisect_right(in_queue, handling.begin.at_micros, key=lambda other: other.begin.at_micros)
    between = itertools.takewhile(lambda other: other.begin.at_micros < until_micros, in_queue[after:])
    return any(other.begin.member != handling.begin.member for other in between)
