"""Shortens a history while its result is still wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from rmqd.testing.chaos.history import Delivery, History, may_happen


def shorten(history: History, is_wrong: Callable[[History], bool]) -> History:
    """Return the shortest history found by removing messages, and then deliveries. `is_wrong` checks each."""
    size = max(1, len({one.part for one in history}) // 2)
    while True:
        for shorter in (*_without_parts(history, size), *(_plainer(history) if size == 1 else ())):
            if may_happen(shorter) and is_wrong(shorter):
                history = shorter
                break
        else:
            if size == 1:
                return history
            size = max(1, size // 2)


def _without_parts(history: History, size: int) -> Iterator[History]:
    """Yield histories without some consecutive parts; the first parts last, because later messages may need them."""
    parts = list(dict.fromkeys(one.part for one in history))
    for end in range(len(parts), 0, -size):
        gone = set(parts[max(0, end - size) : end])
        if len(gone) < len(parts):
            yield tuple(one for one in history if one.part not in gone)


def _plainer(history: History) -> Iterator[History]:
    """Yield histories without consecutive deliveries, the most first; and with one cut earlier, or not at all."""
    for size in range(len(history) - 1, 0, -1):
        for start in range(len(history) - size + 1):
            yield history[:start] + history[start + size :]
    for index, one in enumerate(history):
        for simpler in _simpler(one):
            yield (*history[:index], simpler, *history[index + 1 :])


def _simpler(delivery: Delivery) -> Iterator[Delivery]:
    if delivery.how == "whole":
        return
    yield Delivery(delivery.part)
    if delivery.how == "killed":
        return
    if delivery.how == "expired" and delivery.cut_at:
        yield replace(delivery, how="cut")
    for earlier in range(1, delivery.cut_at):
        yield replace(delivery, cut_at=earlier)
