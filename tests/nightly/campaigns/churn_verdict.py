"""The verdict over churn: causes of repetitions, and queues with two owners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tests.nightly.campaigns.members import JAVA, KILL, LEAVE, MemberEvent
from tests.nightly.campaigns.verdict import JAVA_GAVE_UP, KILLED, SAME_MEMBER, Handling, Handlings, Verdict, listed
from tests.rocketmq.ledger import Entry

JAVA_TOOK = "a Java member acquired the queue without waiting"
JAVA_BETWEEN = "a Java member had the queue in between"
TIMED_OUT = "a handler took longer than queue_handover_timeout"
LEFT_TO_JAVA = "an rmqd member left, and a Java member acquired its queues"
RMQD_TO_RMQD = "from one rmqd member to another"

# a graceful leave or a join of an rmqd member must never cause these
FORBIDDEN = (LEFT_TO_JAVA, SAME_MEMBER, RMQD_TO_RMQD)


@dataclass(frozen=True, slots=True)
class Window:
    """A period of settled and unchanged membership, in microseconds since 1970."""

    begin_micros: int
    end_micros: int


@dataclass(frozen=True, slots=True)
class ChurnVerdict(Verdict):
    """The judged ledger of a churn run."""

    forbidden = FORBIDDEN

    owned_twice: list[str]

    def broken(self) -> list[str]:
        """Queues with two owners."""
        return self.owned_twice

    def details(self) -> list[str]:
        return listed("queues with two owners", self.owned_twice)


@dataclass(slots=True)
class _Evidence:
    """The ledger, indexed for lookups."""

    kinds: Mapping[str, str]
    killed: Mapping[str, int]
    left: Mapping[str, int]
    java_starts: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """By queue, the times when a Java member began one of its messages."""
    long_handlings: dict[tuple[str, str, int], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """By member and queue, begin and end of handlings that took longer than the timeout."""


def judge(
    sent: Collection[str],
    entries: Iterable[Entry],
    events: Iterable[MemberEvent],
    windows: Iterable[Window],
    handover_timeout_seconds: float,
) -> ChurnVerdict:
    """Judge a run. `entries` are in the order of time."""
    events, handlings = list(events), Handlings(entries)
    evidence = _Evidence(
        kinds={event.member: event.kind for event in events},
        killed={event.member: event.at_micros for event in events if event.action == KILL},
        left={event.member: event.at_micros for event in events if event.action == LEAVE},
    )
    for handling in handlings:
        begin, end = handling.begin, handling.finished_micros
        if evidence.kinds.get(begin.member) == JAVA:
            evidence.java_starts[handling.queue].append(begin.at_micros)
        if end is not None and end - begin.at_micros > handover_timeout_seconds * 1e6:
            evidence.long_handlings[begin.member, begin.broker, begin.queue].append((begin.at_micros, end))
    owned_twice = [text for window in windows for text in _owned_twice(handlings, window)]
    return ChurnVerdict.of(
        sent,
        handlings,
        lambda before, again: _cause(evidence, before.begin, again.begin),
        owned_twice=owned_twice,
    )


def _cause(evidence: _Evidence, first: Entry, again: Entry) -> str:
    between = range(first.at_micros, again.at_micros)
    if evidence.killed.get(first.member, again.at_micros) < again.at_micros:
        return KILLED
    if evidence.kinds.get(first.member) == JAVA:
        return JAVA_GAVE_UP
    if evidence.kinds.get(again.member) == JAVA:
        return LEFT_TO_JAVA if evidence.left.get(first.member, again.at_micros) < again.at_micros else JAVA_TOOK
    if any(at in between for at in evidence.java_starts[first.broker, first.queue]):
        return JAVA_BETWEEN
    long = evidence.long_handlings[first.member, first.broker, first.queue]
    # one long handler holds back the offset of all messages finished behind it in its queue
    if any(begin <= again.at_micros and end >= first.at_micros for begin, end in long):
        return TIMED_OUT
    return SAME_MEMBER if first.member == again.member else RMQD_TO_RMQD


def _owned_twice(handlings: Iterable[Handling], window: Window) -> list[str]:
    members: dict[tuple[str, int], set[str]] = defaultdict(set)
    for handling in handlings:
        if window.begin_micros <= handling.begin.at_micros <= window.end_micros:
            members[handling.queue].add(handling.begin.member)
    return [
        f"{broker}/{queue} was handled by {', '.join(sorted(names))} after membership had settled"
        for (broker, queue), names in sorted(members.items())
        if len(names) > 1
    ]
