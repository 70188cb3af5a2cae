"""The manifest: a file of JSON for each Parquet file that is whole. It says which offsets of a queue the file has.

An entry's folder is that of its queue and of a range of a million offsets, so that what was written of some offsets is
found without reading the whole manifest. An entry never crosses such a range.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any, Final
from urllib.parse import quote

from rmqd import Message, MessageQueue

from .stores import Store

FOLDER: Final = "_manifest"
RANGE: Final = 1_000_000
MOST_RUNS: Final = 20_000

Run = tuple[int, int]
"""The first and the last offset of some that follow each other."""
_TimedRun = tuple[int, int, int, int]  # with the oldest and the newest time of storing of its file


@dataclass(frozen=True, slots=True)
class Entry:
    """What the manifest says of a file."""

    file: str
    """Below the store's path."""
    rows: int
    size_bytes: int
    date: str
    topic: str
    source_topic: str
    """The topic of the queue: a group's retry topic, for messages that came again."""
    broker_name: str
    queue_id: int
    offsets: tuple[Run, ...]
    oldest_store_timestamp: int
    """Of its messages, in milliseconds. A message that was stored earlier is another one, whatever its offset."""
    newest_store_timestamp: int
    """One that was stored later is another one, too."""

    def to_json(self) -> bytes:
        """The entry's file."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file goes, and its entry. The same messages have the same place."""

    file: str
    entry: str

    @classmethod
    def of(cls, queue: MessageQueue, date: str, topic: str, messages: Sequence[Message]) -> Place:
        """The place of messages of one queue, of one date and topic, in the order of their offsets."""
        first, last = messages[0].queue_offset, messages[-1].queue_offset
        # with the time: a broker that was made anew gives the same offsets and ids once more
        ids = " ".join(f"{message.offset_msg_id} {message.store_timestamp}" for message in messages)
        digest = hashlib.sha256(ids.encode()).hexdigest()
        stem = f"{first:020}-{last:020}-{digest[:8]}"
        source = "" if queue.topic == topic else "retry-"
        name = f"{source}{quote(queue.broker_name, safe='')}-{queue.queue_id}-{stem}.parquet"
        folder = f"date={date}/topic={quote(topic, safe='')}"
        return cls(f"{folder}/{name}", f"{_folder(queue, first // RANGE)}/{stem}.json")


def runs_of(offsets: Iterable[int]) -> tuple[Run, ...]:
    """Offsets that ascend, as runs."""
    every = list(offsets)
    ends = [(one, other) for one, other in pairwise(every) if other != one + 1]
    return tuple(zip([every[0], *(begin for _, begin in ends)], [*(end for end, _ in ends), every[-1]], strict=True))


class ListedOffsets:
    """Which offsets of one queue the manifest has, as far as it was read."""

    def __init__(self, store: Store, queue: MessageQueue) -> None:
        self._store = store
        self._queue = queue
        self._runs: list[_TimedRun] = []
        self._reached: list[int] = []  # the last offset of each run and of those before it
        self._known: dict[str, list[_TimedRun]] = {}  # the runs of each entry that was read
        self._floor: dict[int, int] = {}  # by range: the offset from which on its entries were read

    def knows(self, first: int, last: int) -> bool:
        """Whether what the manifest has of these offsets was read."""
        return all(first >= self._floor.get(number, first + 1) for number in _ranges(first, last))

    def read(self, first: int, last: int) -> dict[str, dict[str, Any]]:
        """Entries that have some of these offsets or later ones, and are not known. Blocks, and raises OSError."""
        return {
            name: json.loads(self._store.get(f"{folder}/{name}"))
            for folder in (_folder(self._queue, number) for number in _ranges(first, last))
            for name in self._store.names(folder)
            if name not in self._known and _last_of(name) >= first
        }

    def learn(self, first: int, last: int, entries: dict[str, dict[str, Any]]) -> None:
        """Take over what was read for these offsets."""
        self._add(entries)
        for number in _ranges(first, last):
            self._floor[number] = min(first, self._floor.get(number, first))
        self._forget_below(first)

    def note(self, place: Place, entry: Entry) -> None:
        """Note an entry that was just written."""
        self._add({place.entry.rpartition("/")[2]: asdict(entry)})
        self._forget_below(entry.offsets[0][0])

    def has(self, message: Message) -> bool:
        """Whether a file that is listed has this message."""
        offset, stored_ms = message.queue_offset, message.store_timestamp
        at = bisect_right(self._runs, (offset, RANGE**3, 0, 0)) - 1
        # a topic that is deleted and made anew begins again at 0: its messages are others, and runs of both overlap
        while at >= 0 and offset <= self._reached[at]:
            _, last, oldest, newest = self._runs[at]
            if offset <= last and oldest <= stored_ms <= newest:
                return True
            at -= 1
        return False

    def _add(self, entries: dict[str, dict[str, Any]]) -> None:
        runs = self._runs
        for name, entry in entries.items():
            # some entries do not say the oldest
            times = entry.get("oldest_store_timestamp", 0), entry["newest_store_timestamp"]
            self._known[name] = [(first, last, *times) for first, last in entry["offsets"]]
            runs = [*runs, *self._known[name]]
        self._sort(runs)

    def _sort(self, runs: Iterable[_TimedRun]) -> None:
        self._runs = sorted(runs)
        self._reached = list(accumulate((last for _, last, *_ in self._runs), max))

    def _forget_below(self, offset: int) -> None:
        """Forget the lowest half where there is too much, but nothing of this offset or later ones.

        Entries are forgotten as a whole, and read again if messages of them should come.
        """
        if len(self._runs) <= MOST_RUNS:
            return
        left = len(self._runs)
        for name in sorted(self._known, key=_last_of):
            if left <= MOST_RUNS // 2 or _last_of(name) >= offset:
                break
            left -= len(self._known.pop(name))
            lowest = _last_of(name) + 1
            self._floor = {number: max(floor, lowest) for number, floor in self._floor.items()}
        self._sort(run for runs in self._known.values() for run in runs)


def _folder(queue: MessageQueue, number: int) -> str:
    names = (quote(queue.topic, safe=""), quote(queue.broker_name, safe=""), str(queue.queue_id))
    return f"{FOLDER}/{'@'.join(names)}/{number:06}"


def _ranges(first: int, last: int) -> range:
    return range(first // RANGE, last // RANGE + 1)


def _last_of(name: str) -> int:
    """The last offset of an entry, by its name; -1 for a file that is none."""
    parts = name.removesuffix(".json").split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else -1
