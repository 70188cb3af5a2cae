"""What a history is made of: drawn from its seed before it begins, so that parts can be left out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, Self

from tests.simulation.happenings import HAPPENINGS, Happening

Way = Literal["concurrently", "orderly"]
WAYS: Final[tuple[Way, ...]] = ("concurrently", "orderly")
LONGEST_SECONDS: Final = (20.0, 60.0, 120.0)
GAP_SECONDS: Final = (0.1, 10.0)


class Event(NamedTuple):
    """Something that happens. `at` is in seconds since the beginning; `seed` decides who is met, and how hard."""

    number: int
    at: float
    what: str
    seed: float


@dataclass(frozen=True, slots=True)
class Habits:
    """How handlers behave."""

    most_seconds: float = 0.0
    slow: float = 0.0
    """How many batches in one take up to 4 s."""
    fails: float = 0.0
    """How many batches in one fail."""
    poison: float = 0.0
    """How many messages in one fail always."""
    verdicts: float = 0.0
    """How many batches in one end otherwise: a message given up, or retried alone, a rest, an ack index."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One history, before it happens."""

    seed: int
    way: Way
    seconds: float
    """How long things happen and messages are sent."""
    most_messages: int
    queues: tuple[int, ...]
    """The queues of the topic, for each broker."""
    concurrency: int
    batch_size: int
    max_reconsume_times: int
    delay_level: int
    """Of the group: by which failed messages are delayed; 0 leaves it to the broker."""
    auto_commit: bool
    """Whether the handler of an orderly group leaves commits to rmqd."""
    slow: float
    """How many deliveries in one the network takes up to a second for."""
    pieces: float
    """How many deliveries in one come in two pieces."""
    habits: Habits
    troubles: frozenset[str]
    """The kinds of trouble among the events."""
    events: tuple[Event, ...]

    @property
    def kind(self) -> str:
        """In a few words."""
        return f"{self.way}: {', '.join(sorted(self.troubles)) or 'nothing breaks'}"

    def only(self, numbers: Iterable[int]) -> Self:
        """The same with some of the events."""
        kept = frozenset(numbers)
        events = tuple(event for event in self.events if event.number in kept)
        return replace(self, events=events, troubles=self.troubles & {event.what for event in events})


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    chance = random.Random(seed)
    way = chance.choice(WAYS)
    auto_commit = way != "orderly" or chance.random() < 0.7
    possible = {
        name: happening
        for name, happening in HAPPENINGS.items()
        # what a handler holds without a commit at a reset is not judged
        if way in happening.ways and (auto_commit or not name.startswith("reset"))
    }
    troubles = [name for name, happening in possible.items() if happening.is_trouble]
    chosen = frozenset(chance.sample(troubles, chance.randint(0, min(len(troubles), 5))))
    seconds = chance.choice(LONGEST_SECONDS)
    gives_up = chance.random() < 0.5
    return Plan(
        seed=seed,
        way=way,
        seconds=seconds,
        most_messages=10_000,
        queues=tuple(chance.randint(1, 4) for _ in range(chance.randint(1, 2))),
        concurrency=chance.choice((1, 4, 20)),
        batch_size=chance.choice((1, 1, 8)),
        max_reconsume_times=chance.choice((0, 1, 2, 3)) if gives_up else -1,
        delay_level=chance.choice((0, 1, 2)),
        auto_commit=auto_commit,
        slow=chance.choice((0.0, 0.02, 0.1)),
        pieces=chance.choice((0.0, 0.1)),
        habits=Habits(
            most_seconds=chance.choice((0.0, 0.02, 0.2)),
            slow=chance.choice((0.0, 0.01)),
            fails=chance.choice((0.0, 0.0, 0.02)),
            poison=chance.choice((0.0, 0.03)) if gives_up else 0.0,  # else there is no end to it
            verdicts=chance.choice((0.0, 0.0, 0.1)),
        ),
        troubles=chosen,
        events=tuple(_events(chance, seconds, possible, chosen)),
    )


def _events(
    chance: random.Random, seconds: float, possible: dict[str, Happening], troubles: frozenset[str]
) -> Iterable[Event]:
    names = [name for name, happening in possible.items() if name in troubles or not happening.is_trouble]
    weights = [possible[name].weight for name in names]
    at, number = 0.0, 0
    while True:
        at += chance.uniform(*GAP_SECONDS)
        if at > seconds:
            return
        number += 1
        yield Event(number, at, chance.choices(names, weights)[0], chance.random())


def _earlier(plan: Plan) -> Plan:
    """The first event after 5 s, the others as long after it as they were."""
    first = min((event.at for event in plan.events), default=5.0)
    return replace(plan, events=tuple(event._replace(at=event.at - first + 5.0) for event in plan.events))


SIMPLER: Final[dict[str, Callable[[Plan], Plan]]] = {
    "network": lambda plan: replace(plan, slow=0.0, pieces=0.0),
    "handler": lambda plan: replace(plan, habits=Habits()),
    "one_broker": lambda plan: replace(plan, queues=plan.queues[:1]),
    "one_queue": lambda plan: replace(plan, queues=(1,) * len(plan.queues)),
    "no_decisions": lambda plan: replace(plan, habits=replace(plan.habits, verdicts=0.0), auto_commit=True),
    "one_slot": lambda plan: replace(plan, concurrency=1, batch_size=1),
    "few_messages": lambda plan: replace(plan, most_messages=20),
    "early": _earlier,
    "short": lambda plan: replace(plan, seconds=max((event.at for event in plan.events), default=5.0) + 5.0),
}
"""Ways to make a plan simpler, by the names that `--simpler` takes."""
