"""Members that fail, and members that do not end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.judging.wrong import Wrong

if TYPE_CHECKING:
    from tests.simulation.history import History

END_SECONDS: Final = 60.0
"""How long a member may take to leave: its handlers have 30 s, and its last commits and good-byes some more."""


def ends(history: History) -> Iterator[Wrong]:
    """Members that ended by an error, or that were told to leave and are still there."""
    for member in history.former:
        if member.host.is_dead:
            continue
        if not member.task.done():
            yield Wrong("without end", f"{member.name} was asked to leave, and has not left")
        elif (error := member.task.exception()) is not None:
            yield Wrong("failed", f"{member.name}: {error!r}")
