"""The table of all that may happen."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.history import History

Happen = Callable[["History", random.Random], Awaitable[None]]
EVERY_WAY: Final = ("concurrently", "orderly", "pop")


class Happening(NamedTuple):
    """One kind of event. Plans without trouble have those only that are none."""

    happen: Happen
    is_trouble: bool
    weight: float
    ways: tuple[str, ...]
    suits_broadcasting: bool
    """Whether it can happen to a broadcasting group."""
    part: str
    """The part of the cluster that it happens to, if not every history has that."""
    suits_java: bool
    """Whether it can happen to a group with Java members."""


HAPPENINGS: Final[dict[str, Happening]] = {}


def happening(
    *,
    is_trouble: bool = True,
    weight: float = 2.0,
    ways: tuple[str, ...] = EVERY_WAY,
    suits_broadcasting: bool = True,
    part: str = "",
    suits_java: bool = True,
) -> Callable[[Happen], Happen]:
    """Have plans draw this function by its name. It does nothing where it cannot happen."""

    def register(happen: Happen) -> Happen:
        HAPPENINGS[happen.__name__] = Happening(happen, is_trouble, weight, ways, suits_broadcasting, part, suits_java)
        return happen

    return register
