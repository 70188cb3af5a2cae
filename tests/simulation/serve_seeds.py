"""`python -m tests.simulation.serve_seeds`: runs the histories of the seeds on its standard input."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import structlog

from tests.simulation.plan import draw
from tests.simulation.run import Crashed, simulate


def answer(seed: int) -> dict[str, Any]:
    """Return the faults of a seed's history, and the number of duplicates by cause."""
    try:
        outcome = simulate(draw(seed))
    except Crashed as crash:
        return {"wrong": [f"crashed: {crash.__cause__!r}"], "twice": {}, "handled": 0}
    return {"wrong": [str(wrong) for wrong in outcome.wrong], "twice": outcome.twice, "handled": outcome.handled}


def main() -> None:
    """Answer each line with a line of JSON."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(int(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
