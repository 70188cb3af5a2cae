"""How long a micro-batch took: from the driver, which sees its end, to the source, which sizes the next one.

The source lives in a process of its own, and hears of a batch's end only when the next one is due: with a trigger of a
minute that is up to a minute later. They share the folder of the pause file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".took"


def note_batch_time(pause_file: str, batch_id: int, seconds: float) -> None:
    """Tell what a batch took. Raises nothing: without it, the source goes by the time until the next poll."""
    path = Path(pause_file + _SUFFIX)
    with suppress(OSError):
        draft = path.with_suffix(".draft")
        draft.write_text(f"{batch_id} {seconds}")
        os.replace(draft, path)


class BatchTimes:
    """What the driver has told."""

    def __init__(self, pause_file: str) -> None:
        self._path = Path(pause_file + _SUFFIX)
        self._last = ""

    def take(self) -> float | None:
        """Seconds that the last batch took; None where nothing was told since the last time."""
        try:
            text = self._path.read_text()
        except OSError:
            return None
        if text == self._last:
            return None
        self._last = text
        return float(text.split()[1])
