"""The plan of a history: drawn from its seed before it begins, so that parts can be omitted."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, Self

from rmqd.consumer.consumer_options import ConsumeFromWhere
from tests.simulation.habits import Habits
from tests.simulation.happenings import HAPPENINGS, Happening
from tests.simulation.slave import SlaveHabits
from tests.simulation.trial_choice import with_last_trial, with_trials

Way = Literal["concurrently", "orderly", "pop"]
WAYS: Final[tuple[Way, ...]] = ("concurrently", "orderly")
"""The modes of groups that pull."""
SEEDS_FOR_POP: Final = 4
"""Each multiple of this number is the seed of a group that pops."""
LONGEST_SECONDS: Final = (20.0, 60.0, 120.0)
WITHOUT_SLAVES: Final = 0.6
GAP_SECONDS: Final = (0.1, 10.0)
MIXED: Final = 0.2
"""The share of histories with Java members."""
JAVA: Final = (0.2, 0.5, 0.8)
BROADCASTING: Final = 0.1
"""The share of histories with a broadcasting group."""
LATE_COMMITS: Final = (0.0, 0.3)
BY_KEY: Final = 0.2
"""The share of histories with `order_by`."""
CALM: Final = 0.3
"""The share of histories without failures, in which no fault is excused."""
MAX_TROUBLES: Final = 4
MAX_OPERATIONS: Final = 3
"""The maximum number of kinds of operations in a history: each kind excuses some faults."""
REBALANCES: Final = frozenset(("join", "leave"))


class Event(NamedTuple):
    """An event. `at` is in seconds since the beginning; `seed` decides who is affected, and how severely."""

    number: int
    at: float
    what: str
    seed: float


@dataclass(frozen=True, slots=True)
class Popping:
    """How a group pops."""

    invisible_seconds: float = 60.0
    share_queues: int = 0
    """The number of other members whose queues each member also pops; 0: all members pop all queues."""
    batch_nums: int = 32
    threshold: int = 96


@dataclass(frozen=True, slots=True)
class Plan:
    """One history, before it happens."""

    seed: int
    way: Way
    seconds: float
    """How long events happen and messages are sent."""
    most_messages: int
    queues: tuple[int, ...]
    """The number of queues of the topic, for each broker."""
    consume_from_where: ConsumeFromWhere
    concurrency: int
    batch_size: int
    max_reconsume_times: int
    delay_level: int
    """The group's delay level for failed messages; 0: the broker chooses it."""
    auto_commit: bool
    """Whether the handler of an orderly group leaves commits to rmqd."""
    slow: float
    """The share of network deliveries that take up to a second."""
    pieces: float
    """The share of network deliveries that arrive in two pieces."""
    habits: Habits
    troubles: frozenset[str]
    """The kinds of trouble among the events."""
    events: tuple[Event, ...]
    popping: Popping
    is_broadcasting: bool = False
    """Whether each member must handle every message, and keeps its offsets in its own file."""
    name_servers: int = 1
    most_cached: int = 1000
    """The group's threshold: a member may cache so many messages of a queue, and those of one more response."""
    trials: tuple[str, ...] = ()
    """The trials at the end, one after the other, after the last failure."""
    slaves: SlaveHabits | None = None
    """The habits of each broker's slave; None: there are no slaves."""
    late_commits: float = 0.0
    """The share of commits that a broker processes late, so that later requests may overtake them."""
    java: float = 0.0
    """The share of Java members."""
    has_lanes: bool = False
    """Whether the group has `order_by`: messages of one lane are handled in order, one at a time, next to other
    lanes."""

    @property
    def repeats_in_place(self) -> bool:
        """Whether a failed message stays in its queue."""
        return self.way == "orderly" or self.has_lanes

    @property
    def kind(self) -> str:
        """Return a short description."""
        model = "broadcasting " if self.is_broadcasting else ""
        company = " with Java" if self.java else " by key" if self.has_lanes else ""
        return f"{model}{self.way}{company}: {', '.join(sorted(self.troubles)) or 'nothing breaks'}"

    def only(self, numbers: Iterable[int]) -> Self:
        """Return the plan with some of its events only."""
        kept = frozenset(numbers)
        events = tuple(event for event in self.events if event.number in kept)
        return replace(self, events=events, troubles=self.troubles & {event.what for event in events})


def draw(seed: int) -> Plan:
    """Return the plan of a seed."""
    chance = random.Random(seed)
    way = chance.choice(WAYS)
    if seed % SEEDS_FOR_POP == 0:
        way = "pop"
    is_broadcasting = way != "pop" and random.Random(f"{seed} model").random() < BROADCASTING
    # Messages discarded without a commit are redelivered, which is not judged.
    auto_commit = is_broadcasting or way != "orderly" or chance.random() < 0.7
    java = _java(seed) if auto_commit and way in WAYS and not is_broadcasting else 0.0
    may_begin_at_the_end = (
        way in WAYS and not is_broadcasting and not java
    )  # the model of Java always starts at the first offset
    possible = {
        name: happening
        for name, happening in HAPPENINGS.items()
        # uncommitted messages of a handler at a reset are not judged
        if not happening.part
        and way in happening.ways
        and (auto_commit or not name.startswith("reset"))
        and (happening.suits_broadcasting or not is_broadcasting)
        and (happening.suits_java or not java)
    }
    troubles = [name for name, happening in possible.items() if happening.is_trouble]
    chosen = frozenset(() if _is_calm(seed) else chance.sample(troubles, chance.randint(1, MAX_TROUBLES)))
    operations = [name for name in possible if name not in {*troubles, *REBALANCES}]
    done = chance.sample(operations, chance.randint(0, min(len(operations), MAX_OPERATIONS)))
    seconds = chance.choice(LONGEST_SECONDS)
    gives_up = chance.random() < 0.5
    plan = Plan(
        seed=seed,
        way=way,
        seconds=seconds,
        most_messages=10_000,
        queues=tuple(chance.randint(1, 4) for _ in range(chance.randint(1, 2))),
        # With last_offset, a later machine of a broadcasting group starts at its own end, and a member that pops at its
        # first pop.
        consume_from_where=chance.choice(("first_offset", "last_offset" if may_begin_at_the_end else "first_offset")),
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
            poison=chance.choice((0.0, 0.03)) if gives_up else 0.0,  # otherwise it never ends
            verdicts=chance.choice((0.0, 0.0, 0.1)),
            slow_seconds=12.0 if way == "pop" else 4.0,  # longer than the shortest invisible time
        ),
        troubles=chosen,
        events=tuple(_events(chance, seconds, possible, chosen | REBALANCES | frozenset(done))),
        popping=Popping(
            invisible_seconds=chance.choice((5.0, 10.0, 20.0, 60.0)),
            share_queues=chance.choice((0, 0, 1, 2)),
            batch_nums=chance.choice((4, 32)),
            threshold=chance.choice((8, 96)),
        ),
        is_broadcasting=is_broadcasting,
        java=java,
        has_lanes=_has_lanes(seed) and auto_commit and way in WAYS and not (is_broadcasting or java),
    )
    return with_last_trial(_with_late_commits(_with_slaves(with_trials(_with_name_servers(plan)))))


def _with_name_servers(plan: Plan) -> Plan:
    """Return the plan with several name servers, or with one."""
    chance = random.Random(f"{plan.seed} name servers")
    count = chance.choice((1, 1, 2, 3))
    if count == 1 or _is_calm(plan.seed):
        return plan
    return replace(_with_part(plan, "name servers", chance), name_servers=count)


def _with_slaves(plan: Plan) -> Plan:
    """Return the plan with a slave for each broker, or with none."""
    chance = random.Random(f"{plan.seed} slaves")
    # The model of a Java member reads from masters only, and waits for a master that is down.
    if _is_calm(plan.seed) or chance.random() < WITHOUT_SLAVES:
        return plan
    habits = SlaveHabits(copy_seconds=chance.choice((0.05, 1.0, 5.0)), checks_offsets=chance.random() < 0.5)
    # members do not pop from slaves, so a pop group needs no such trial
    is_tried = plan.trials and plan.auto_commit and plan.way in WAYS
    trials = (*plan.trials, "believe_no_slave") if is_tried else plan.trials
    return replace(_with_part(plan, "slaves", chance), slaves=habits, trials=trials)


def _with_late_commits(plan: Plan) -> Plan:
    """Return the plan, maybe with late commits, but not together with a slow network."""
    if plan.slow or plan.java or plan.is_broadcasting or plan.way not in WAYS:
        return plan
    return replace(plan, late_commits=random.Random(f"{plan.seed} commits").choice(LATE_COMMITS))


def _with_part(plan: Plan, part: str, chance: random.Random) -> Plan:
    """Return the plan with events of a part of the cluster that not every history has."""
    possible = {name: happening for name, happening in HAPPENINGS.items() if happening.part == part}
    chosen = frozenset(chance.sample(list(possible), chance.randint(1, len(possible))))
    events = (*plan.events, *_events(chance, plan.seconds, possible, chosen, len(plan.events)))
    in_order = tuple(sorted(events, key=lambda event: event.at))
    return replace(plan, events=in_order, troubles=plan.troubles | chosen)


def _is_calm(seed: int) -> bool:
    return random.Random(f"{seed} calm").random() < CALM


def _has_lanes(seed: int) -> bool:
    return random.Random(f"{seed} lanes").random() < BY_KEY


def _java(seed: int) -> float:
    chance = random.Random(f"{seed} java")
    return chance.choice(JAVA) if chance.random() < MIXED else 0.0


def _events(
    chance: random.Random, seconds: float, possible: dict[str, Happening], chosen: frozenset[str], number: int = 0
) -> Iterable[Event]:
    """Draw events of the `chosen` kinds, numbered from `number` + 1."""
    names = [name for name in possible if name in chosen]
    weights = [possible[name].weight for name in names]
    at = 0.0
    while True:
        at += chance.uniform(*GAP_SECONDS)
        if at > seconds:
            return
        number += 1
        yield Event(number, at, chance.choices(names, weights)[0], chance.random())
