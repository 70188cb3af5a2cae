"""The file with a group's offsets before a reset, which `rmqd offsets restore` reads."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

_FORM: Final = "rmqd offsets 1"
_LONGEST: Final = 180  # limit for the names in a file name, which may have 250 characters; the file has the full names


@dataclass(frozen=True, slots=True)
class SavedOffset:
    """The offset in one queue; None if the group had none."""

    broker: str
    queue: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Backup:
    """A group's offsets in a topic. Names are without the namespace."""

    group: str
    topic: str
    namespace: str
    nameserver: str
    made_at: str
    """The time as ISO 8601 in UTC."""
    offsets: tuple[SavedOffset, ...]
    cluster: str = ""
    """The id of the cluster; empty if it has none, and in files of rmqd 0.1.0."""

    def difference(self, cluster: str, nameserver: str, namespace: str) -> str:
        """Say that it was made for another cluster or namespace than this one; empty if it was not."""
        is_same = self.cluster == cluster if self.cluster and cluster else self.nameserver == nameserver
        if is_same and self.namespace == namespace:
            return ""
        return (
            f"it was made on the cluster {self.cluster or 'without an id'} (name servers {self.nameserver}) in the "
            f"namespace {self.namespace!r}, and this is {cluster or 'one without an id'} (name servers {nameserver}) "
            f"and the namespace {namespace!r}; --force applies it all the same"
        )

    def write(self, folder: Path) -> Path:
        """Write a new file into a folder, which is created if missing. Raises OSError."""
        from rmqd.consumer.offsets.private_files import make_folder, replace_file, sync_folder

        make_folder(folder)
        names = f"{self.group}-{self.topic}"[:_LONGEST]
        name = f"{names}-{self.made_at}".replace(":", "")
        path = folder / f"{name}.json"
        replace_file(path, f"{json.dumps({'form': _FORM, **asdict(self)}, indent=2)}\n".encode())
        sync_folder(folder)
        return path

    @classmethod
    def read(cls, path: Path) -> Backup:
        """Read a file. Raises OSError, and ValueError if it is not a backup."""
        document: Any = json.loads(path.read_text())
        if not isinstance(document, dict) or document.pop("form", None) != _FORM:
            raise ValueError(f"expected a file of the form `{_FORM}`")
        try:
            saved = tuple(_saved(one) for one in document.pop("offsets"))
            backup = cls(**document, offsets=saved)
        except (KeyError, TypeError) as error:
            raise ValueError(str(error)) from None
        if not all(isinstance(value, str) for name, value in asdict(backup).items() if name != "offsets"):
            raise ValueError("names and times must be texts")
        return backup


def now_text() -> str:
    """Return the time as ISO 8601 in UTC, in microseconds."""
    moment = time.time_ns() // 1000
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment // 10**6)) + f".{moment % 10**6:06}Z"


def _saved(document: dict[str, Any]) -> SavedOffset:
    one = SavedOffset(**document)
    numbers = (one.queue, 0 if one.offset is None else one.offset)
    if type(one.broker) is not str or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"{document} is not a queue with its offset")
    return one
