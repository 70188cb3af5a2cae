"""`python -m tests.simulation --seed 1 --count 100`: runs histories, and prints what is wrong with which seed."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import secrets
import sys
import time
from collections import Counter

import pytest
import structlog

from rmqd import backoff
from tests.simulation.history import History, Outcome
from tests.simulation.loop import SimulatedLoop
from tests.simulation.planted import PLANTED


def say(line: str) -> None:
    """At once, as whoever waits may lose patience."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def simulate(seed: int) -> Outcome:
    """Run the history of a seed."""
    random.seed(seed)
    backoff.RANDOM.seed(seed)
    loop = SimulatedLoop()
    asyncio.set_event_loop(loop)
    history = History(seed, loop)
    try:
        return loop.run_until_complete(history.run())
    except Exception as error:
        say("\n".join(history.timeline.lines()[-30:]))
        raise AssertionError(f"seed {seed} ({history.kind})") from error
    finally:
        loop.end()


def _token_hex(nbytes: int | None = None) -> str:
    """What `secrets` would draw of the system, drawn of the seed."""
    return random.randbytes(nbytes or 32).hex()


def _randbits(k: int) -> int:
    """The same."""
    return random.getrandbits(k)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="the first one (default: another one each time)")
    parser.add_argument("--count", type=int, default=1, help="how many seeds from there on (default 1)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more after so long")
    parser.add_argument(
        "--planted", choices=PLANTED, help="put this bug into rmqd, and end at the first seed that finds it"
    )
    parser.add_argument("--timeline", action="store_true", help="print what happened")
    parser.add_argument("--log", action="store_true", help="print what the members log")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a history
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
                  os.environ | {"PYTHONHASHSEED": "0"})  # fmt: skip
    first = random.SystemRandom().randrange(1_000_000, 1 << 30) if options.seed is None else options.seed
    if not options.log:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    secrets.token_hex = _token_hex
    secrets.randbits = _randbits
    begin, simulated, bad, twice = time.monotonic(), 0.0, 0, Counter[str]()
    if options.planted:
        PLANTED[options.planted](pytest.MonkeyPatch())
    count = 0
    for seed in range(first, first + options.count):
        if time.monotonic() - begin > options.seconds or (options.planted and bad):
            break
        count += 1
        outcome = simulate(seed)
        simulated += outcome.seconds
        twice.update(outcome.twice)
        if options.timeline:
            say("\n".join(outcome.lines))
        if outcome.wrong or options.count == 1:
            say(f"seed {seed} ({outcome.kind}) {outcome.digest}: {outcome.handled} handled, {outcome.twice}")
        for line in outcome.wrong[-12:]:
            say(f"    {line}")
        bad += bool(outcome.wrong)
    took = time.monotonic() - begin
    say(f"{count} histories from seed {first} on, {bad} wrong; done twice, by cause: {dict(twice)}")
    say(f"{simulated / 3600:.2f} simulated hours in {took:.1f} s, {simulated / took:.0f} times as fast as real time")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
