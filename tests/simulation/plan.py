"""What a history is made of: drawn from its seed before it begins, so that parts can be left out."""

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
"""Of the groups that pull."""
SEEDS_FOR_POP: Final = 4
"""Each seed that this divides draws a group that pops instead."""
LONGEST_SECONDS: Final = (20.0, 60.0, 120.0)
WITHOUT_SLAVES: Final = 0.6
GAP_SECONDS: Final = (0.1, 10.0)
MIXED: Final = 0.2
"""How many histories in one are of a group that has Java members too."""
JAVA: Final = (0.2, 0.5, 0.8)
BROADCASTING: Final = 0.1
"""How many histories in one are of a broadcasting group."""
LATE_COMMITS: Final = (0.0, 0.3)
BY_KEY: Final = 0.2
"""How many histories in one are of a group with `order_by`."""
CALM: Final = 0.3
"""How many histories in one have nothing that breaks: what goes wrong in them, nothing excuses."""
MAX_TROUBLES: Final = 4
MAX_OPERATIONS: Final = 3
"""How many kinds of what operators do a history has: each kind excuses something."""
REBALANCES: Final = frozenset(("join", "leave"))


class Event(NamedTuple):
    """Something that happens. `at` is in seconds since the beginning; `seed` decides who is met, and how hard."""

    number: int
    at: float
    what: str
    seed: float


@dataclass(frozen=True, slots=True)
class Popping:
    """How a group pops."""

    invisible_seconds: float = 60.0
    share_queues: int = 0
    """The members whose queues each one pops too; 0: all pop all."""
    batch_nums: int = 32
    threshold: int = 96


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
    consume_from_where: ConsumeFromWhere
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
    popping: Popping
    is_broadcasting: bool = False
    """Whether each member is to handle every message, with its offsets in a file of its own."""
    name_servers: int = 1
    most_cached: int = 1000
    """The group's threshold: so many messages of a queue may a member hold, and those of one reply more."""
    trials: tuple[str, ...] = ()
    """What is tried at the end, one after the other, when all is well."""
    slaves: SlaveHabits | None = None
    """How each broker's slave behaves; None: there are no slaves."""
    late_commits: float = 0.0
    """How many commits in one a broker takes up late, so that what was sent after it may come first."""
    java: float = 0.0
    """How many members in one are Java's."""
    has_lanes: bool = False
    """Whether the group has `order_by`: messages of one lane are in order and one at a time, others beside them."""

    @property
    def repeats_in_place(self) -> bool:
        """Whether a message that failed stays where it is."""
        return self.way == "orderly" or self.has_lanes

    @property
    def kind(self) -> str:
        """In a few words."""
        model = "broadcasting " if self.is_broadcasting else ""
        company = " with Java" if self.java else " by key" if self.has_lanes else ""
        return f"{model}{self.way}{company}: {', '.join(sorted(self.troubles)) or 'nothing breaks'}"

    def only(self, numbers: Iterable[int]) -> Self:
        """The same with some of the events."""
        kept = frozenset(numbers)
        events = tuple(event for event in self.events if event.number in kept)
        return replace(self, events=events, troubles=self.troubles & {event.what for event in events})


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    chance = random.Random(seed)
    way = chance.choice(WAYS)
    if seed % SEEDS_FOR_POP == 0:
        way = "pop"
    is_broadcasting = way != "pop" and random.Random(f"{seed} model").random() < BROADCASTING
    # what is dropped without a commit comes again, which is not judged
    auto_commit = is_broadcasting or way != "orderly" or chance.random() < 0.7
    java = _java(seed) if auto_commit and way in WAYS and not is_broadcasting else 0.0
    may_begin_at_the_end = (
        way in WAYS and not is_broadcasting and not java
    )  # as Java's model always begins at the first
    possible = {
        name: happening
        for name, happening in HAPPENINGS.items()
        # what a handler holds without a commit at a reset is not judged
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
        # a machine that comes later to a broadcasting group begins at its own end, and one that pops when it pops first
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
            poison=chance.choice((0.0, 0.03)) if gives_up else 0.0,  # else there is no end to it
            verdicts=chance.choice((0.0, 0.0, 0.1)),
            slow_seconds=12.0 if way == "pop" else 4.0,  # more than once the shortest invisible time
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
    """The same with several name servers, or none but the one."""
    chance = random.Random(f"{plan.seed} name servers")
    count = chance.choice((1, 1, 2, 3))
    if count == 1 or _is_calm(plan.seed):
        return plan
    return replace(_with_part(plan, "name servers", chance), name_servers=count)


def _with_slaves(plan: Plan) -> Plan:
    """The same with a slave for each broker, or with none."""
    chance = random.Random(f"{plan.seed} slaves")
    # a Java member of the model reads masters alone, and waits for one that is away
    if _is_calm(plan.seed) or chance.random() < WITHOUT_SLAVES:
        return plan
    habits = SlaveHabits(copy_seconds=chance.choice((0.05, 1.0, 5.0)), checks_offsets=chance.random() < 0.5)
    # nothing is popped from a slave, so there is nothing to believe
    is_tried = plan.trials and plan.auto_commit and plan.way in WAYS
    trials = (*plan.trials, "believe_no_slave") if is_tried else plan.trials
    return replace(_with_part(plan, "slaves", chance), slaves=habits, trials=trials)


def _with_late_commits(plan: Plan) -> Plan:
    """The same with brokers that take some commits up late, if they do; not also by a slow network."""
    if plan.slow or plan.java or plan.is_broadcasting or plan.way not in WAYS:
        return plan
    return replace(plan, late_commits=random.Random(f"{plan.seed} commits").choice(LATE_COMMITS))


def _with_part(plan: Plan, part: str, chance: random.Random) -> Plan:
    """The same with what happens to a part of the cluster that not every history has."""
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
    """What happens, of what is `chosen`, with numbers from the one after `number` on."""
    names = [name for name in possible if name in chosen]
    weights = [possible[name].weight for name in names]
    at = 0.0
    while True:
        at += chance.uniform(*GAP_SECONDS)
        if at > seconds:
            return
        number += 1
        yield Event(number, at, chance.choices(names, weights)[0], chance.random())
