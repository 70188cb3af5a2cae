"""Frames that a member could not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.simulation.judging.wrong import Wrong

if TYPE_CHECKING:
    from tests.simulation.history import History


def unread(history: History) -> Iterator[Wrong]:
    """Frames that members rejected as corrupt. No frame is damaged here, but some arrive in pieces, and some never."""
    for member in history.former:
        if count := member.figures().corrupt_frames:
            yield Wrong("frames", f"{member.name} could not read {count} frames, which were right")
