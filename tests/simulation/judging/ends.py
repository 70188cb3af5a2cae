"""Members that fail, and members that do not stop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.judging.wrong import Wrong

if TYPE_CHECKING:
    from tests.simulation.history import History

END_SECONDS: Final = 60.0
"""How long a member may take to leave: 30 s for its handlers, and some more for its last commits and unregistration."""


def ends(history: History) -> Iterator[Wrong]:
    """Members that ended with an error, or still run after they were asked to leave."""
    for member in history.former:
        if member.host.is_dead:
            continue
        if not member.task.done():
            yield Wrong("without end", f"{member.name} was asked to leave, and has not left")
        elif (error := member.task.exception()) is not None:
            yield Wrong("failed", f"{member.name}: {error!r}")
