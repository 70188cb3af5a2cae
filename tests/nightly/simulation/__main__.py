"""`python -m tests.nightly.simulation --seed 1 --count 100` runs histories and prints the seeds that failed."""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

import pytest
import structlog

from tests.nightly.simulation.planted import PLANTED
from tests.nightly.simulation.planted.search import search, summary, told
from tests.nightly.simulation.shrink import SIMPLER, shrink
from tests.simulation.outcome import Outcome
from tests.simulation.plan import Plan, draw
from tests.simulation.run import simulate

MAX_LINES = 12
MAX_TO_FIND = 100
"""The most histories for each planted bug."""


def say(line: str) -> None:
    """Print a line without buffering."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def tell(outcome: Outcome) -> None:
    """Print the judge's reports about a history."""
    plan = outcome.plan
    say(f"seed {plan.seed} ({plan.kind}) {outcome.digest}: {outcome.handled} handled, {dict(outcome.twice)}")
    for wrong in outcome.wrong[:MAX_LINES]:
        say(f"    {wrong}")
    if len(outcome.wrong) > MAX_LINES:
        say(f"    and {len(outcome.wrong) - MAX_LINES} more")


def tell_shortest(outcome: Outcome) -> None:
    """Print the shortest history with the same failure, and the options that run it again."""
    what = outcome.wrong[0].what

    def is_wrong(plan: Plan) -> bool:
        return any(wrong.what == what for wrong in simulate(plan).wrong)

    shortest, simpler = shrink(outcome.plan, is_wrong)
    again = simulate(shortest, tells=True)
    first = next(wrong for wrong in again.wrong if wrong.what == what)
    say(f"the shortest history in which a message is {what}:")
    say("\n".join(again.lines(first.keys)))
    numbers = ",".join(str(event.number) for event in shortest.events)
    say(f"    {first}")
    say(
        f"again: --seed {shortest.seed} --events {numbers or 'none'} --simpler {','.join(simpler) or 'none'} --timeline"
    )


def look_for(bugs: Iterable[str], first_seed: int, most_histories: int, *, as_json: bool) -> bool:
    """Search for each of these planted bugs. Return whether a bug was not found."""
    searches = []
    for bug in bugs:
        searches.append(search(bug, first_seed, most_histories))
        say(json.dumps(asdict(searches[-1])) if as_json else told(searches[-1]))
    if not as_json:
        say(summary(searches))
    return any(one.seed is None for one in searches)


def named_plan(seed: int, options: argparse.Namespace) -> Plan:
    """Return the plan of a seed, reduced as the options say."""
    plan = draw(seed)
    if options.events:
        plan = plan.only(int(number) for number in options.events.split(",") if number != "none")
    for name in (options.simpler or "none").split(","):
        plan = plan if name == "none" else SIMPLER[name](plan)
    return plan


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="the first one (default: another one each time)")
    parser.add_argument("--count", type=int, default=1, help="how many seeds from there on (default 1)")
    parser.add_argument("--kind", default="", help="only histories whose kind has these words, such as broadcasting")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more after so long")
    parser.add_argument(
        "--planted",
        choices=("all", *PLANTED),
        metavar="BUG",
        help="put this bug into rmqd, and end at the first seed that finds it; all: each of them, 100 seeds at most",
    )
    parser.add_argument("--shrink", action="store_true", help="tell the shortest history of the first seed that fails")
    parser.add_argument("--timeline", action="store_true", help="print what happened, and what members log")
    parser.add_argument("--events", help="have these events only, by their numbers: 3,7 or none")
    parser.add_argument("--simpler", help=f"make the plan simpler, by {', '.join(SIMPLER)}")
    parser.add_argument(
        "--json", action="store_true", help="print figures for programs, in a last line; of bugs, a line each"
    )
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a history
        os.execve(sys.executable, [sys.executable, "-m", "tests.nightly.simulation", *sys.argv[1:]],
                  os.environ | {"PYTHONHASHSEED": "0"})  # fmt: skip
    first = random.SystemRandom().randrange(1_000_000, 1 << 30) if options.seed is None else options.seed
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if options.planted == "all" or (options.planted and options.json):
        most = options.count if options.count > 1 else MAX_TO_FIND
        bugs = PLANTED if options.planted == "all" else (options.planted,)
        return look_for(bugs, 1 if options.seed is None else options.seed, most, as_json=options.json)
    begin, simulated, bad, twice = time.monotonic(), 0.0, 0, Counter[str]()
    if options.planted:
        PLANTED[options.planted](pytest.MonkeyPatch())
    count, wrong = 0, dict[int, str]()
    seeds = (seed for seed in itertools.count(first) if options.kind in draw(seed).kind)
    for seed in itertools.islice(seeds, options.count):
        if time.monotonic() - begin > options.seconds or (options.planted and bad):
            break
        count += 1
        outcome = simulate(named_plan(seed, options), tells=options.timeline)
        simulated += outcome.seconds
        twice.update(outcome.twice)
        if options.timeline:
            say("\n".join(outcome.lines(None)))
        if outcome.wrong or options.count == 1:
            tell(outcome)
        if outcome.wrong:
            bad += 1
            wrong[seed] = str(outcome.wrong[0])
        if options.shrink and outcome.wrong:
            tell_shortest(outcome)
            break
    took = time.monotonic() - begin
    say(f"{count} histories from seed {first} on, {bad} wrong; done twice, by cause: {dict(twice)}")
    say(f"{simulated / 3600:.2f} simulated hours in {took:.1f} s, {simulated / took:.0f} times as fast as real time")
    if options.json:
        figures = {"first": first, "histories": count, "wrong": wrong, "twice": twice}
        say(json.dumps(figures | {"hours": simulated / 3600, "seconds": took}))
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
