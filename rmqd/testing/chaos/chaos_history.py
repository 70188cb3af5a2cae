"""Deliveries in a possible order. Hypothesis draws them, and finds the simplest history with a wrong result.

Within a queue the order is kept: a queue continues, or goes back and repeats all messages from there, as after an
uncommitted offset. Between queues there is no order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy  # an extra, and slow to import

MAX_HISTORIES: Final = 100
_MAX_TURNS: Final = 60
_MAX_KILLS: Final = 8
_SEED: Final = 4711  # fixed, so that every run has the same histories

How = Literal["whole", "cut", "expired", "killed"]


@dataclass(frozen=True, slots=True, order=True)
class QueueBatch:
    """Messages that are delivered together: a batch of one queue."""

    queue: tuple[str, int]
    messages: tuple[int, ...]
    """Indexes among all messages."""


@dataclass(frozen=True, slots=True)
class ChaosDelivery:
    """One call of the handler."""

    part: QueueBatch
    how: How = "whole"
    cut_at: int = 0
    """For a cut: the number of the await, from 1. A synchronous handler that expires still runs to its end.

    For a kill: the line of the handler before which it dies, from 1; 0: after the last line.
    """


History = tuple[ChaosDelivery, ...]


def each_part_once(parts: Sequence[QueueBatch]) -> History:
    """Return each part once, queue by queue."""
    return tuple(ChaosDelivery(part) for part in parts)


Turn = tuple[int, Literal["whole", "cut", "expired", "back"], int]
"""A queue's number, what happens there, and the await of a cut or the length of a way back."""


def simplest(
    parts: Sequence[QueueBatch], awaits: int, is_wrong: Callable[[History], bool], *, is_async: bool
) -> History | None:
    """Return the simplest history found with a wrong result; None if all that were tried are right.

    `awaits` is the maximum of the handler's awaits in one call.
    """
    from hypothesis import HealthCheck, Phase, find, settings
    from hypothesis.errors import NoSuchExample

    quiet = settings(
        max_examples=MAX_HISTORIES, database=None, deadline=None, phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    drawn = histories(parts, awaits, is_async=is_async)
    try:
        return find(drawn, is_wrong, settings=quiet, random=random.Random(_SEED))
    except NoSuchExample:
        return None


def histories(parts: Sequence[QueueBatch], awaits: int, *, is_async: bool) -> SearchStrategy[History]:
    """Return the histories to try. Simpler ones have fewer messages, fewer turns, and earlier cuts."""
    from hypothesis import strategies as st

    longest = len(parts) - 1
    kinds = ["whole", "back", *(["cut"] if awaits else []), *(["expired"] if awaits or not is_async else [])]
    turns = st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from(kinds), st.integers(0, max(awaits - 1, longest, 0))),
        max_size=min(3 * len(parts), _MAX_TURNS),
    )
    # mostly large numbers, because a search with few messages finds less. Each number can shrink separately
    large = st.lists(st.integers(0, longest), min_size=4, max_size=4).map(max)
    return st.builds(partial(_history, parts, awaits), large, large, turns)


def _history(parts: Sequence[QueueBatch], awaits: int, last: int, at_end: int, turns: Sequence[Turn]) -> History:
    """Return the history of the parts up to `last`, of the last `at_end` + 1: these turns, then the rest."""
    chosen = parts[len(parts) - 1 - at_end : last + 1] or parts[last : last + 1]
    queues = [[*ones] for _, ones in groupby(chosen, key=lambda part: part.queue)]
    next_ones, found = [0] * len(queues), list[ChaosDelivery]()
    for number, kind, size in turns:
        queue, at = queues[number % len(queues)], next_ones[number % len(queues)]
        if kind == "back":
            at = max(0, at - 1 - size)
        elif at < len(queue):
            cut_at = 1 + size % awaits if awaits and kind != "whole" else 0
            found.append(ChaosDelivery(queue[at], kind, cut_at))
            at += kind == "whole"
        next_ones[number % len(queues)] = at
    rest = (part for queue, at in zip(queues, next_ones, strict=True) for part in queue[at:])
    return (*found, *map(ChaosDelivery, rest))


def killed(parts: Sequence[QueueBatch], lines: int) -> Iterator[History]:
    """Yield histories whose process dies once, and whose last message or queue is then delivered again.

    The process dies before the last commit, or after some lines of a part; each history kills it in another part.
    """
    once = each_part_once(parts)
    last = once[-1]
    yield (*once[:-1], replace(last, how="killed"), last)
    if len(once) > 1:
        of_queue = [one for one in once if one.part.queue == last.part.queue]
        yield (*once[:-1], replace(last, how="killed"), *of_queue)
    step = max(1, -(-lines // _MAX_KILLS))
    for number, line in enumerate(range(lines, 1, -step)):
        at = -1 - number % len(once)
        yield (*once[:at], replace(once[at], how="killed", cut_at=line), *once[at:])
