"""Bugs that are planted in rmqd, one at a time, to check that a history finds each of them.

Some are classic mistakes; others are mistakes that rmqd had, adapted to the present code. Each is a function that
patches the code; its docstring describes the effect. The modules:

- `cache`: which messages of a queue are finished, and which offset may be committed.
- `handling`: batches, workers and failed messages.
- `by_key`: groups with `order_by`.
- `attempts`: how often and how soon a failed message is retried.
- `commits`: how offsets reach the brokers.
- `pull_commits`: commits that pulls carry.
- `files`: the offsets of a broadcasting group.
- `giving_up`: the end of an ownership of a queue.
- `locks`: which member may own a queue, and until when.
- `rebalance`: the assignment of queues.
- `pulls`: requests for messages, and the use of their responses.
- `lines`: connections, responses and heartbeats.
- `routes`: queries to name servers, and the effect of their routes.
- `slaves`: the use of slaves.
- `popped`: pops, and acknowledgements and retries of popped messages.
- `operators`: operators' commands, except for resets.
- `resets`: operators' resets of offsets.
- `brokers`: the embedded broker.

`registry` has the table of all bugs, and `search` searches for them:
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
