"""Histories of deliveries to a handler. Hypothesis generates them, and finds the simplest history with a wrong result.

Messages of one queue keep their order. But a queue may go back to an earlier message, and deliver this message and all
later ones again, as if their offset had not been committed. Messages of different queues have no order.
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


@dataclass(frozen=True, slots=True, order=True)
class QueueBatch:
    """Messages that are delivered together: a batch of one queue."""

    queue: tuple[str, int]
    messages: tuple[int, ...]
    """Indexes into the list of all messages of the search."""


@dataclass(frozen=True, slots=True)
class ChaosDelivery:
    """One call of the handler: its batch, and how the call is disturbed (`whole`: not at all)."""

    part: QueueBatch
    how: Literal["whole", "cut", "expired", "killed"] = "whole"
    cut_at: int = 0
    """For `cut` and `expired`: the number of the await at which the call is cancelled, from 1; 0: it runs to its end.

    For `killed`: the line of the handler before which its process dies, from 1; 0: after the last line.
    """


History = tuple[ChaosDelivery, ...]


def undisturbed_history(parts: Sequence[QueueBatch]) -> History:
    """Return the undisturbed history: each batch of `parts` is delivered once, in this order."""
    return tuple(ChaosDelivery(part) for part in parts)


Turn = tuple[int, Literal["whole", "cut", "expired", "back"], int]
"""A queue's number, an event in the queue, and a size: it selects the await of a cut, or how far `back` goes."""


def find_simplest_history(
    parts: Sequence[QueueBatch], awaits: int, is_wrong: Callable[[History], bool], *, is_async: bool
) -> History | None:
    """Return the simplest history that `is_wrong` accepts; None if the search finds no such history.

    `awaits` is the largest number of awaits in one call of the handler.
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
    """Return Hypothesis's strategy for histories. It shrinks to fewer messages, fewer turns, and earlier cuts."""
    from hypothesis import strategies as st

    longest = len(parts) - 1
    kinds = ["whole", "back", *(["cut"] if awaits else []), *(["expired"] if awaits or not is_async else [])]
    turns = st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from(kinds), st.integers(0, max(awaits - 1, longest, 0))),
        max_size=min(3 * len(parts), _MAX_TURNS),
    )
    # The maximum of 4 numbers is usually large: histories with few messages find less. Each number can still shrink.
    large = st.lists(st.integers(0, longest), min_size=4, max_size=4).map(max)
    return st.builds(partial(_history, parts, awaits), large, large, turns)


def _history(parts: Sequence[QueueBatch], awaits: int, last: int, at_end: int, turns: Sequence[Turn]) -> History:
    """Return the turns, then the rest. Only the last `at_end` + 1 parts occur, without those after index `last`."""
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
    """Yield histories in which the handler's process dies once, and a new process receives messages again.

    The process dies after the last batch, and the batch or its whole queue is repeated. Or the process dies before one
    of the handler's `lines`, each time in another batch.
    """
    once = undisturbed_history(parts)
    last = once[-1]
    yield (*once[:-1], replace(last, how="killed"), last)
    if len(once) > 1:
        of_queue = [one for one in once if one.part.queue == last.part.queue]
        yield (*once[:-1], replace(last, how="killed"), *of_queue)
    step = max(1, -(-lines // _MAX_KILLS))
    for number, line in enumerate(range(lines, 1, -step)):
        at = -1 - number % len(once)
        yield (*once[:at], replace(once[at], how="killed", cut_at=line), *once[at:])
