"""What every verdict over a ledger has: attempts at messages, what was lost, and what was handled again and why."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from tests.rocketmq.ledger import FAIL, FINISH, START, Entry

KILLED = "the member was killed with -9"
JAVA_GAVE_UP = "a Java member released the queue"
SAME_MEMBER = "one rmqd member, twice"
STORED_TWICE = "the topic has the message twice"
SHOWN = 10


@dataclass(slots=True)
class Handling:
    """One attempt at one message by one member, from its begin to its end, in microseconds since 1970."""

    begin: Entry
    end_micros: int | None = None
    outcome: str = ""
    """FINISH or FAIL; empty if the ledger has no end of it."""

    @property
    def queue(self) -> tuple[str, int]:
        """Broker and number."""
        return self.begin.broker, self.begin.queue

    @property
    def finished_micros(self) -> int | None:
        """When the attempt finished; None if it failed or was cut short."""
        return self.end_micros if self.outcome == FINISH else None

    def __str__(self) -> str:
        """For the report."""
        begin = self.begin
        return f"{begin.key} at {begin.broker}/{begin.queue} by {begin.member} at {begin.at_micros}..{self.end_micros}"


class Handlings(list[Handling]):
    """Every attempt of a ledger, in the order of their begins."""

    def __init__(self, entries: Iterable[Entry], ends: Mapping[str, int] | None = None) -> None:
        """`entries` are in the order of time. `ends` has when members ended: what they had in hand ends then.

        A second start by the same member ends its earlier attempt at the message.
        """
        super().__init__()
        self.by_key: defaultdict[str, list[Handling]] = defaultdict(list)
        self.by_queue: defaultdict[tuple[str, int], list[Handling]] = defaultdict(list)
        running: dict[tuple[str, str], Handling] = {}
        for entry in entries:
            at = (entry.member, entry.key)
            if entry.event == START:
                if at in running:
                    running[at].end_micros = entry.at_micros
                running[at] = handling = Handling(entry)
                self.append(handling)
                self.by_key[entry.key].append(handling)
                self.by_queue[handling.queue].append(handling)
            elif entry.event in (FINISH, FAIL) and at in running:
                running[at].end_micros, running[at].outcome = entry.at_micros, entry.event
                del running[at]
        for handling in running.values():
            handling.end_micros = (ends or {}).get(handling.begin.member)

    @property
    def finished(self) -> set[str]:
        """The keys that were handled."""
        return {one.begin.key for one in self if one.outcome == FINISH}

    def lost(self, sent: Collection[str]) -> list[str]:
        """What nobody finished of these keys."""
        return sorted(set(sent) - self.finished)

    def again(self) -> Iterator[tuple[Handling, Handling]]:
        """Pairs of consecutive attempts at one message: the earlier and the later one."""
        for attempts in self.by_key.values():
            yield from itertools.pairwise(attempts)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a ledger says."""

    forbidden: ClassVar[tuple[str, ...]]
    """Causes of repetition that rmqd promises not to produce."""

    sent: int
    lost: list[str]
    repeated: Counter[str]
    """Second and later attempts, by cause."""
    examples: dict[str, tuple[Handling, Handling]]
    """For each cause one pair of attempts at one message."""

    @classmethod
    def of(
        cls, sent: Collection[str], handlings: Handlings, cause: Callable[[Handling, Handling], str], **more: Any
    ) -> Self:
        """`cause` says why the second attempt was made; `more` are a verdict's own fields."""
        repeated: Counter[str] = Counter()
        examples: dict[str, tuple[Handling, Handling]] = {}
        for before, again in handlings.again():
            why = cause(before, again)
            repeated[why] += 1
            examples.setdefault(why, (before, again))
        return cls(len(sent), handlings.lost(sent), repeated, examples, **more)

    def broken(self) -> list[str]:
        """What broke this campaign's own promises."""
        return []

    def details(self) -> list[str]:
        """This campaign's own lines of the report."""
        return []

    @property
    def passed(self) -> bool:
        """Nothing lost, nothing broken, and no repetition that rmqd promises not to cause."""
        return not self.lost and not self.broken() and not any(self.repeated[cause] for cause in self.forbidden)

    def report(self) -> str:
        """For the person who ran it."""
        lines = [
            f"sent {self.sent}, lost {len(self.lost)}{''.join(f' {key}' for key in self.lost[:SHOWN])}",
            f"handled again: {self.repeated.total()}",
        ]
        for cause, count in self.repeated.most_common():
            lines.append(f"  {count:6} {cause}{' (FORBIDDEN)' if cause in self.forbidden else ''}")
            if cause in self.forbidden:
                lines += [f"         {handling}" for handling in self.examples[cause]]
        return "\n".join([*lines, *self.details()])


def listed(what: str, texts: Collection[str]) -> list[str]:
    """A line with the number of `texts`, then the first of them."""
    return [f"{what}: {len(texts)}", *(f"  {text}" for text in itertools.islice(texts, SHOWN))]
