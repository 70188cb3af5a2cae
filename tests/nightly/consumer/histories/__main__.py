"""`python -m tests.nightly.consumer.histories hand_over --count 100`: prints each wrong history with its seed."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import structlog

from rmqd.runtime import clock as backoff
from tests.nightly.consumer.histories.hand_over import hand_over
from tests.nightly.consumer.histories.offsets import offsets


class Outcome(Protocol):
    """The result of a history."""

    @property
    def is_good(self) -> bool:
        """Whether the history kept all promises."""

    def figures(self) -> dict[str, int]:
        """Numbers to add up over all histories."""


KINDS: dict[str, Callable[[int], Outcome]] = {"hand_over": hand_over, "offsets": offsets}


def say(line: str) -> None:
    """Print and flush the line, because histories take long."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly.consumer.histories", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=1, help="the first one (default 1)")
    parser.add_argument("--count", type=int, default=1, help="how many seeds from there on (default 1)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more after so long")
    parser.add_argument("--log", action="store_true", help="print what the members log")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a history
        os.execve(sys.executable, [sys.executable, "-m", "tests.nightly.consumer.histories", *sys.argv[1:]],
                  os.environ | {"PYTHONHASHSEED": "0"})  # fmt: skip
    if not options.log:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    totals, begin = Counter[str](), time.monotonic()
    for seed in range(options.seed, options.seed + options.count):
        if time.monotonic() - begin > options.seconds:
            break
        backoff.JITTER_RANDOM.seed(seed)
        outcome = KINDS[options.kind](seed)
        totals.update(histories=1, failed=not outcome.is_good, **outcome.figures())
        if not outcome.is_good:
            say(f"seed {seed}: {outcome}")
    totals["seconds"] = round(time.monotonic() - begin)
    say(json.dumps(totals))
    return 1 if totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
