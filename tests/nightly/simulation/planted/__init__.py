"""Bugs to be put into rmqd, one at a time, to see that a history finds each of them.

Some are classic mistakes; others are mistakes that rmqd had, in the code as it is. Each is a function that patches the
code; its docstring says what is wrong then. The modules:

- `cache`: which messages of a queue are finished, and which offset may be committed.
- `handling`: batches and workers, and what becomes of what a handler failed at.
- `by_key`: groups with `order_by`.
- `attempts`: how often and how soon a failed message is tried again.
- `commits`: how offsets reach the brokers.
- `pull_commits`: commits that pulls carry.
- `files`: the offsets of a broadcasting group.
- `giving_up`: the end of an ownership of a queue.
- `locks`: who may have a queue, and until when.
- `rebalance`: who gets which queue.
- `pulls`: what is asked of a queue, and what is made of the answers.
- `lines`: connections, answers and heartbeats.
- `routes`: which name server is asked, and what its routes change.
- `slaves`: what is made of a slave.
- `popped`: how members pop, and what they tell brokers about popped messages.
- `operators`: what operators ask, but for resets.
- `resets`: operators' resets of offsets.
- `brokers`: the embedded broker.

`registry` has the table of all, and `search` looks for them:
`python -m tests.nightly.simulation --planted NAME`, or `all`.
"""

from tests.nightly.simulation.planted import (
    attempts,
    brokers,
    by_key,
    cache,
    commits,
    files,
    giving_up,
    handling,
    lines,
    locks,
    operators,
    popped,
    pull_commits,
    pulls,
    rebalance,
    resets,
    routes,
    slaves,
)
from tests.nightly.simulation.planted.registry import PLANTED, Plant

__all__ = [
    "PLANTED",
    "Plant",
    "attempts",
    "brokers",
    "by_key",
    "cache",
    "commits",
    "files",
    "giving_up",
    "handling",
    "lines",
    "locks",
    "operators",
    "popped",
    "pull_commits",
    "pulls",
    "rebalance",
    "resets",
    "routes",
    "slaves",
]
