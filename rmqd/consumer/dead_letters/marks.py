"""The file with the settled dead letters of a group, and the copies that may be in transit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rmqd.consumer.dead_letters.spans import Spans
from rmqd.consumer.offsets import process_lock
from rmqd.consumer.offsets.private_files import make_folder, replace_file, sync_folder
from rmqd.errors import InUseError, RmqdError
from rmqd.wire.identity import Identity

FOLDER: Final = "dlq"
FILE_NAME: Final = "marks.json"
LOCK_NAME: Final = "lock"

Way = Literal["retry_topic", "send_back"]
Place = tuple[str, int]
"""A queue of the group's dead letters: broker name and queue id."""


@dataclass(frozen=True, slots=True)
class Window:
    """Letters of one queue that are replayed together.

    `keys` maps the letters' offsets to the keys of their copies. `ends` are the ends of the queues that a copy may
    reach, by topic and queue, before the first copy was sent.
    """

    queue_id: int
    way: Way
    keys: Mapping[int, str]
    ends: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Witness:
    """A settled letter that identifies the queue. A recreated topic has another message at this offset."""

    offset: int
    replay_id: str


class Marks:
    """The settled letters of one group. Methods block. Call `hold` before writing."""

    def __init__(self, state_dir: Path, group: str) -> None:
        self.path = self._former = state_dir / FOLDER / group / FILE_NAME
        self._folder = state_dir / FOLDER
        self.settled: dict[Place, Spans] = {}
        self.witnesses: dict[Place, Witness] = {}
        self.windows: dict[str, Window] = {}
        """Open windows by broker name, at most one for each broker."""
        self.is_new = True
        """Whether there was no file yet."""

    def belong_to(self, identity: Identity) -> None:
        """Use the file of the group on its cluster. Until it exists, rmqd 0.1.0's file without a cluster is valid."""
        self.path = self._folder / str(identity) / FILE_NAME

    def hold(self) -> None:
        """Lock the file until this process ends. Raises RmqdError, also if another process holds the lock."""
        folder = self.path.parent
        try:
            make_folder(folder)
            process_lock.hold(folder / LOCK_NAME)
        except InUseError as error:  # its advice, another state_dir, would send letters twice
            raise RmqdError(
                f"another replay or purge of this group is running (process {error.owner or '?'}); wait until it ends"
            ) from error
        except OSError as error:
            raise RmqdError(
                f"{folder}, which records the progress of a replay, cannot be written: {error.strerror or error}; "
                "set another folder with --set state_dir=FOLDER"
            ) from error

    def load(self) -> None:
        """Read the file if it exists. Raises RmqdError if it cannot be read or is damaged."""
        try:
            document = json.loads((self.path if self.path.exists() else self._former).read_bytes())
            self._take(document)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RmqdError(f"{self.path} cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RmqdError(
                f"{self.path} is damaged ({error}); restore it from a backup. If you remove it, settled letters are "
                "known only by the group's offsets on the brokers, and by copies that are still in its retry topic"
            ) from error
        self.is_new = False

    def save(self) -> None:
        """Replace the file. Raises RmqdError."""
        document = {
            "queues": [
                {
                    "broker": broker,
                    "queue": queue_id,
                    "settled": list(spans),
                    "witness": asdict(self.witnesses[broker, queue_id])
                    if (broker, queue_id) in self.witnesses
                    else None,
                }
                for (broker, queue_id), spans in sorted(self.settled.items())
            ],
            "windows": {broker: asdict(window) for broker, window in self.windows.items()},
        }
        try:
            replace_file(self.path, json.dumps(document).encode())
            sync_folder(self.path.parent)
            if self._former != self.path and self._former.exists():  # `load` has used it, so it is about this cluster
                self._former.replace(self._former.with_name(f"{FILE_NAME}.moved"))
        except OSError as error:
            raise RmqdError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def settle(self, place: Place, offset: int, replay_id: str = "") -> None:
        """Mark one letter as settled. With its id it becomes the witness of the queue."""
        self.settled.setdefault(place, Spans()).add(offset)
        if replay_id:
            self.witnesses[place] = Witness(offset, replay_id)

    def forget(self, place: Place) -> None:
        """Remove all marks of a queue, as if there had been no file."""
        self.is_new = True
        self.settled.pop(place, None)
        self.witnesses.pop(place, None)

    def _take(self, document: Any) -> None:
        for one in document["queues"]:
            place = str(one["broker"]), int(one["queue"])
            self.settled[place] = Spans((int(low), int(high)) for low, high in one["settled"])
            if one["witness"]:
                self.witnesses[place] = Witness(int(one["witness"]["offset"]), str(one["witness"]["replay_id"]))
        for broker, one in document["windows"].items():
            keys = {int(offset): str(key) for offset, key in one["keys"].items()}
            ends = {topic: {int(queue): int(end) for queue, end in ends.items()} for topic, ends in one["ends"].items()}
            self.windows[broker] = Window(int(one["queue_id"]), one["way"], keys, ends)
