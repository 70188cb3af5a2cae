"""The verdict over a ledger: what was lost, what was handled again and why, and whether a queue had two owners."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.campaigns.members import JAVA, KILL, LEAVE, MemberEvent
from tests.rocketmq.ledger import FINISH, START, Entry

KILLED = "the member was killed with -9"
JAVA_GAVE_UP = "a Java member gave the queue up"
JAVA_TOOK = "a Java member took the queue over, and does not wait"
JAVA_BETWEEN = "a Java member had the queue in between"
TIMED_OUT = "a handler took longer than queue_handover_timeout"
LEFT_TO_JAVA = "an rmqd member left, and a Java member took over"
SAME_MEMBER = "one rmqd member, twice"
RMQD_TO_RMQD = "from one rmqd member to another"

# what a graceful leave or a join of an rmqd member must never cause
FORBIDDEN = (LEFT_TO_JAVA, SAME_MEMBER, RMQD_TO_RMQD)


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which membership did not change and had settled, in microseconds since 1970."""

    begin_micros: int
    end_micros: int


def told(
    sent: int,
    lost: Sequence[str],
    repeated: Counter[str],
    examples: Mapping[str, tuple[Entry, Entry]],
    forbidden: Collection[str],
) -> list[str]:
    """The lines that every verdict begins with: what was lost, and what was handled again by cause."""
    lines = [f"sent {sent}, lost {len(lost)}{''.join(f' {key}' for key in lost[:10])}"]
    lines.append(f"handled again: {sum(repeated.values())}")
    for cause, count in repeated.most_common():
        lines.append(f"  {count:6} {cause}{' (FORBIDDEN)' if cause in forbidden else ''}")
        if cause in forbidden:
            lines += [f"         {entry.line().rstrip()}" for entry in examples[cause]]
    return lines


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a ledger says."""

    sent: int
    lost: list[str]
    repeated: Counter[str]
    """Second and later deliveries, by cause."""
    examples: dict[str, tuple[Entry, Entry]]
    """For each cause one pair of deliveries of one message."""
    owned_twice: list[str]

    @property
    def passed(self) -> bool:
        """Nothing lost, no queue with two owners, and no repetition that rmqd promises not to cause."""
        return not self.lost and not self.owned_twice and not any(self.repeated[cause] for cause in FORBIDDEN)

    def report(self) -> str:
        """For the person who ran it."""
        lines = told(self.sent, self.lost, self.repeated, self.examples, FORBIDDEN)
        lines.append(f"queues with two owners: {len(self.owned_twice)}")
        return "\n".join([*lines, *(f"  {text}" for text in self.owned_twice[:10])])


@dataclass(slots=True)
class _Evidence:
    """The ledger, arranged for questions."""

    kinds: Mapping[str, str]
    killed: Mapping[str, int]
    left: Mapping[str, int]
    java_starts: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """Queue to the times when a Java member began a message of it."""
    long_handlings: dict[tuple[str, str, int], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Member and queue to begin and end of what took longer than the timeout."""


def judge(
    sent: Collection[str],
    entries: Sequence[Entry],
    events: Iterable[MemberEvent],
    windows: Iterable[Window],
    handover_timeout_seconds: float,
) -> Verdict:
    """Judge a run; `entries` are in the order of time."""
    events = list(events)
    evidence = _Evidence(
        kinds={event.member: event.kind for event in events},
        killed={event.member: event.at_micros for event in events if event.action == KILL},
        left={event.member: event.at_micros for event in events if event.action == LEAVE},
    )
    _arrange(evidence, entries, handover_timeout_seconds)
    repeated: Counter[str] = Counter()
    examples: dict[str, tuple[Entry, Entry]] = {}
    latest: dict[str, Entry] = {}
    for entry in entries:
        if entry.event != START:
            continue
        if entry.key in latest:
            cause = _cause(evidence, latest[entry.key], entry)
            repeated[cause] += 1
            examples.setdefault(cause, (latest[entry.key], entry))
        latest[entry.key] = entry
    finished = {entry.key for entry in entries if entry.event == FINISH}
    owned_twice = [text for window in windows for text in _owned_twice(entries, window)]
    return Verdict(len(sent), sorted(set(sent) - finished), repeated, examples, owned_twice)


def _arrange(evidence: _Evidence, entries: Sequence[Entry], timeout_seconds: float) -> None:
    open_since: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        if entry.event == START:
            open_since[entry.member, entry.key] = entry
            if evidence.kinds.get(entry.member) == JAVA:
                evidence.java_starts[entry.broker, entry.queue].append(entry.at_micros)
        elif entry.event == FINISH:
            begin = open_since.pop((entry.member, entry.key), entry)
            if entry.at_micros - begin.at_micros > timeout_seconds * 1e6:
                queue = (entry.member, entry.broker, entry.queue)
                evidence.long_handlings[queue].append((begin.at_micros, entry.at_micros))


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
    # one long handler holds back the offset of everything that was finished above it in its queue
    if any(begin <= again.at_micros and end >= first.at_micros for begin, end in long):
        return TIMED_OUT
    return SAME_MEMBER if first.member == again.member else RMQD_TO_RMQD


def _owned_twice(entries: Iterable[Entry], window: Window) -> list[str]:
    members: dict[tuple[str, int], set[str]] = defaultdict(set)
    for entry in entries:
        if entry.event == START and window.begin_micros <= entry.at_micros <= window.end_micros:
            members[entry.broker, entry.queue].add(entry.member)
    return [
        f"{broker}/{queue} was handled by {', '.join(sorted(names))} after membership had settled"
        for (broker, queue), names in sorted(members.items())
        if len(names) > 1
    ]
