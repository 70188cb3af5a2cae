"""The table of all events."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.history import History

Happen = Callable[["History", random.Random], Awaitable[None]]
EVERY_WAY: Final = ("concurrently", "orderly", "pop")


class Happening(NamedTuple):
    """One kind of event. Plans without trouble use only kinds that are not trouble."""

    happen: Happen
    is_trouble: bool
    weight: float
    ways: tuple[str, ...]
    suits_broadcasting: bool
    """Whether a broadcasting group can have this event."""
    part: str
    """The part of the cluster that it affects, if not every history has that part."""
    suits_java: bool
    """Whether a group with Java members can have this event."""


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
    """Register a function under its name, for plans to draw. It does nothing if the event is impossible."""

    def register(happen: Happen) -> Happen:
        HAPPENINGS[happen.__name__] = Happening(happen, is_trouble, weight, ways, suits_broadcasting, part, suits_java)
        return happen

    return register
