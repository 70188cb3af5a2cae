"""The note next to a generation's checkpoint: its start offsets, and later changes by brokers and operators.

A note file never changes: `note-000007.json` replaces the files before it. So on any file system a note is either
complete or missing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

from rmqd.errors import RmqdError
from rmqd.spark.engine.checkpoint import Folder
from rmqd.spark.source.offsets import ByQueue, flat, nested

VERSION: Final = 1

_FILE: Final = re.compile(r"note-([0-9]{6,})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The state of one generation, stored next to its checkpoint."""

    starting: ByQueue | None = None
    """The start offsets of the generation's query; None for the group's offsets on the brokers."""
    reason: str = ""
    """Why the generation was started, as a sentence."""
    told: bool = True
    """Whether `starting` was committed to the brokers. Until then their offsets are outdated."""
    held: ByQueue = field(default_factory=dict)
    """The group's offsets that brokers are known to have on disk. The query commits no lower ones."""
    resets: ByQueue = field(default_factory=dict)
    """Offsets to which operators have reset the group since. The next generation starts there."""

    def to_json(self) -> bytes:
        """Return the note as JSON, for `of`."""
        value = {
            "v": VERSION,
            "starting": None if self.starting is None else nested(self.starting),
            "reason": self.reason,
            "told": self.told,
            "held": nested(self.held),
            "resets": nested(self.resets),
        }
        return json.dumps(value, indent=1).encode()

    @classmethod
    def of(cls, content: bytes) -> Note:
        """Read the output of `to_json`. Raises RmqdError."""
        try:
            value = json.loads(content)
            if value["v"] != VERSION:
                raise RmqdError(f"the note has version {value['v']!r}; expected {VERSION}")
            starting = value["starting"]
            return cls(
                starting=None if starting is None else flat(starting, "starting"),
                reason=str(value["reason"]),
                told=bool(value["told"]),
                held=flat(value["held"], "held"),
                resets=flat(value["resets"], "resets"),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise RmqdError(f"not a valid note of a generation: {error!r}") from error


def read_note(folder: Folder, path: str) -> Note | None:
    """Return the last note of a generation; None if there is none. Raises RmqdError if it is unreadable."""
    numbers = _numbers(folder, path)
    if not numbers:
        return None
    file = f"{path}/{_name(numbers[-1])}"
    try:
        return Note.of(folder.read(file))
    except RmqdError as error:
        raise RmqdError(f"{folder.url}/{file}: {error}") from error


def write_note(folder: Folder, path: str, note: Note) -> None:
    """Replace a generation's note. Raises RmqdError."""
    numbers = _numbers(folder, path)
    folder.put(f"{path}/{_name(numbers[-1] + 1 if numbers else 0)}", note.to_json())
    for number in numbers:
        folder.delete(f"{path}/{_name(number)}")


def _numbers(folder: Folder, path: str) -> list[int]:
    return sorted(int(found[1]) for name in folder.names(path) if (found := _FILE.fullmatch(name)))


def _name(number: int) -> str:
    return f"note-{number:06}.json"
