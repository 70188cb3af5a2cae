"""Deliveries in a possible order, and the histories to try.

Within a queue the order is kept: a queue continues, or goes back and repeats all messages from there, as after an
uncommitted offset. Between queues there is no order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Final, Literal

MIXES: Final = 12
_MOST_CUTS: Final = 8  # limit of cuts at a handler's awaits, for all messages together
_SEED: Final = 4711  # fixed, so that every run has the same histories

How = Literal["whole", "cut", "expired", "killed"]


@dataclass(frozen=True, slots=True)
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


def undisturbed(parts: Sequence[QueueBatch]) -> History:
    """Return each part once, queue by queue."""
    return tuple(ChaosDelivery(part) for part in parts)


def may_happen(history: History) -> bool:
    """Return whether the order within each queue is kept, and every part is finished."""
    for queue in {one.part.queue for one in history}:
        deliveries = [one for one in history if one.part.queue == queue]
        parts = sorted({one.part.messages for one in deliveries})
        next_one = 0
        for one in deliveries:
            index = parts.index(one.part.messages)
            if index > next_one:
                return False
            next_one = index + 1 if one.how == "whole" else index
        if next_one < len(parts):
            return False
    return True


def tried(parts: Sequence[QueueBatch], awaits: int, *, is_async: bool) -> Iterator[History]:
    """Yield the histories to try, the simplest first. `awaits` is the maximum of the handler's awaits in one call."""
    once = undisturbed(parts)
    yield tuple(chain.from_iterable((one, one) for one in once))
    queues = list(dict.fromkeys(part.queue for part in parts))
    by_queue = [[one for one in once if one.part.queue == queue] for queue in queues]
    yield tuple(chain.from_iterable(chain(queue, queue) for queue in by_queue))
    if len(queues) > 1:
        yield tuple(chain.from_iterable(reversed(by_queue)))
        yield tuple(one for turn in zip_longest(*by_queue) for one in turn if one is not None)
    for cut_at in _some(awaits):
        yield tuple(chain.from_iterable((replace(one, how="cut", cut_at=cut_at), one) for one in once))
    for cut_at in _some(awaits) if is_async else [0]:
        yield tuple(chain.from_iterable((replace(one, how="expired", cut_at=cut_at), one) for one in once))
    chance = random.Random(_SEED)
    for _ in range(MIXES):
        yield _mixed(by_queue, awaits, chance, is_async=is_async)


def killed_behind_the_end(parts: Sequence[QueueBatch]) -> Iterator[History]:
    """Yield histories that end in a kill before the last commit: the last part, or its queue, is repeated."""
    once = undisturbed(parts)
    last = once[-1]
    yield (*once[:-1], replace(last, how="killed"), last)
    if len(once) > 1:
        of_queue = [one for one in once if one.part.queue == last.part.queue]
        yield (*once[:-1], replace(last, how="killed"), *of_queue)


def killed_between(parts: Sequence[QueueBatch], lines: int) -> Iterator[History]:
    """Yield histories whose process dies within a part, which ran so many lines; each time in another part."""
    once = undisturbed(parts)
    for number, line in enumerate(one for one in reversed(_some(lines)) if one > 1):
        at = -1 - number % len(once)
        end = (*once[:at], replace(once[at], how="killed", cut_at=line), *once[at:])
        yield end


def _some(awaits: int) -> list[int]:
    step = max(1, -(-awaits // _MOST_CUTS))
    return sorted({*range(1, awaits + 1, step), *([awaits] if awaits else [])})


def _mixed(by_queue: Sequence[list[ChaosDelivery]], awaits: int, chance: random.Random, *, is_async: bool) -> History:
    """Return queues in random turns, with cut and expired parts, and queues that go back."""
    next_ones, found = [0] * len(by_queue), list[ChaosDelivery]()
    backs = 2 * sum(map(len, by_queue))  # limits the history
    while left := [index for index, queue in enumerate(by_queue) if next_ones[index] < len(queue)]:
        index = chance.choice(left)
        one = by_queue[index][next_ones[index]]
        what = chance.random()
        if what < 0.2 and (awaits or not is_async) and backs:
            backs -= 1
            how: How = "cut" if awaits and chance.random() < 0.5 else "expired"
            found.append(replace(one, how=how, cut_at=chance.randint(1, awaits) if awaits else 0))
            continue
        found.append(one)
        next_ones[index] += 1
        if what > 0.7 and backs:
            backs -= 1
            next_ones[index] = chance.randrange(next_ones[index])
    return tuple(found)
