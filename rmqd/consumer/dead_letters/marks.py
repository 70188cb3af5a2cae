"""The file that says which dead letters of a group are settled, and which copies may be on their way."""

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
"""A queue of the group's dead letters: the broker's name, and the queue's number."""


@dataclass(frozen=True, slots=True)
class Window:
    """Letters of one queue that are being replayed together.

    `keys` are the letters' offsets with what their copies are known by; `ends` is where, before the first was sent, the
    queues ended that a copy may get to: by topic and queue.
    """

    queue_id: int
    way: Way
    keys: Mapping[int, str]
    ends: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Witness:
    """A settled letter by which the queue is known again: a topic that was deleted and made anew has another there."""

    offset: int
    replay_id: str


class Marks:
    """What is settled of one group's dead letters. Methods block; `hold` first, to write."""

    def __init__(self, state_dir: Path, group: str) -> None:
        self.path = self._former = state_dir / FOLDER / group / FILE_NAME
        self._folder = state_dir / FOLDER
        self.settled: dict[Place, Spans] = {}
        self.witnesses: dict[Place, Witness] = {}
        self.windows: dict[str, Window] = {}
        """By the broker's name: at most one is open on each."""
        self.is_new = True
        """Whether nothing was noted here before."""

    def belong_to(self, identity: Identity) -> None:
        """Use the file of the group on its cluster. Until it is there, that of rmqd 0.1.0 counts, which named none."""
        self.path = self._folder / str(identity) / FILE_NAME

    def hold(self) -> None:
        """Keep other processes from writing, until this one ends. Raises RmqdError, also where another one does."""
        folder = self.path.parent
        try:
            make_folder(folder)
            process_lock.hold(folder / LOCK_NAME)
        except InUseError as error:  # whose advice, another state_dir, would have letters go out twice
            raise RmqdError(
                f"process {error.owner or '?'} replays or purges this group's dead letters now; wait for its end"
            ) from error
        except OSError as error:
            raise RmqdError(
                f"what is replayed is noted in {folder}, which cannot be written: {error.strerror or error}; "
                "--set state_dir=FOLDER names another one"
            ) from error

    def load(self) -> None:
        """Read the file, if there is one. Raises RmqdError where it cannot be read, or is damaged."""
        try:
            document = json.loads((self.path if self.path.exists() else self._former).read_bytes())
            self._take(document)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RmqdError(f"{self.path} cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RmqdError(
                f"{self.path} is damaged ({error}); put a good copy in its place. Moved away, what is settled is known "
                "by the group's positions on the brokers alone, and by copies that are still in its retry topic"
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
            if self._former != self.path and self._former.exists():  # it is about this cluster, then
                self._former.replace(self._former.with_name(f"{FILE_NAME}.moved"))
        except OSError as error:
            raise RmqdError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def settle(self, place: Place, offset: int, replay_id: str = "") -> None:
        """Mark one letter; with its id it can bear witness of the queue."""
        self.settled.setdefault(place, Spans()).add(offset)
        if replay_id:
            self.witnesses[place] = Witness(offset, replay_id)

    def forget(self, place: Place) -> None:
        """Take back all marks in a queue: it is as if nothing was noted before."""
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
