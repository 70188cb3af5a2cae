"""Passes the duration of a micro-batch from the driver, which sees its end, to the source, which sizes the next one.

The source runs in a separate process, and learns of a batch's end only when the next one is due, which with a trigger
of a minute is up to a minute later. So the driver writes the duration into the folder of the pause file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".took"


def note_batch_time(pause_file: str, batch_id: int, seconds: float) -> None:
    """Store the duration of a batch. Raises nothing: without it, the source uses the time until the next poll."""
    path = Path(pause_file + _SUFFIX)
    with suppress(OSError):
        draft = path.with_suffix(".draft")
        draft.write_text(f"{batch_id} {seconds}")
        os.replace(draft, path)


class BatchTimes:
    """Reads the durations that the driver writes."""

    def __init__(self, pause_file: str) -> None:
        self._path = Path(pause_file + _SUFFIX)
        self._last = ""

    def take(self) -> float | None:
        """Return the duration of the last batch in seconds; None if nothing was written since the last call."""
        try:
            text = self._path.read_text()
        except OSError:
            return None
        if text == self._last:
            return None
        self._last = text
        return float(text.split()[1])
