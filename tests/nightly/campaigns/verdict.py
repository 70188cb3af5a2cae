"""Common parts of all verdicts over ledgers: attempts at messages, lost messages, and causes of repetitions."""

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
    """One attempt of one member at one message, with begin and end in microseconds since 1970."""

    begin: Entry
    end_micros: int | None = None
    outcome: str = ""
    """FINISH or FAIL; empty if the ledger has no end of the attempt."""

    @property
    def queue(self) -> tuple[str, int]:
        """Broker and queue id."""
        return self.begin.broker, self.begin.queue

    @property
    def finished_micros(self) -> int | None:
        """When the attempt finished; None if it failed or was cut short."""
        return self.end_micros if self.outcome == FINISH else None

    def __str__(self) -> str:
        """The format of the report."""
        begin = self.begin
        return f"{begin.key} at {begin.broker}/{begin.queue} by {begin.member} at {begin.at_micros}..{self.end_micros}"


class Handlings(list[Handling]):
    """All attempts of a ledger, in the order of their begin."""

    def __init__(self, entries: Iterable[Entry], ends: Mapping[str, int] | None = None) -> None:
        """`entries` are in the order of time. `ends` are the ends of members, which end their open attempts.

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
        """The keys of finished messages."""
        return {one.begin.key for one in self if one.outcome == FINISH}

    def lost(self, sent: Collection[str]) -> list[str]:
        """Return the keys that no member finished."""
        return sorted(set(sent) - self.finished)

    def again(self) -> Iterator[tuple[Handling, Handling]]:
        """Yield pairs of consecutive attempts at one message: the earlier and the later one."""
        for attempts in self.by_key.values():
            yield from itertools.pairwise(attempts)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judged ledger of a run."""

    forbidden: ClassVar[tuple[str, ...]]
    """Causes of repetitions that rmqd promises to avoid."""

    sent: int
    lost: list[str]
    repeated: Counter[str]
    """The number of second and later attempts by cause."""
    examples: dict[str, tuple[Handling, Handling]]
    """One pair of attempts at one message for each cause."""

    @classmethod
    def of(
        cls, sent: Collection[str], handlings: Handlings, cause: Callable[[Handling, Handling], str], **more: Any
    ) -> Self:
        """`cause` returns the reason for the second attempt; `more` are fields of the subclass."""
        repeated: Counter[str] = Counter()
        examples: dict[str, tuple[Handling, Handling]] = {}
        for before, again in handlings.again():
            why = cause(before, again)
            repeated[why] += 1
            examples.setdefault(why, (before, again))
        return cls(len(sent), handlings.lost(sent), repeated, examples, **more)

    def broken(self) -> list[str]:
        """The broken promises of this campaign."""
        return []

    def details(self) -> list[str]:
        """Further lines of this campaign's report."""
        return []

    @property
    def passed(self) -> bool:
        """Whether nothing is lost or broken, and no repetition has a forbidden cause."""
        return not self.lost and not self.broken() and not any(self.repeated[cause] for cause in self.forbidden)

    def report(self) -> str:
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
