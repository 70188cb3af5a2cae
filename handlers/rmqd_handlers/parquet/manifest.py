"""The manifest: a JSON file for each complete Parquet file, with the file's offsets of a queue.

The folder of an entry is its source plus a range of a million offsets. So entries of given offsets are found without
reading the whole manifest. An entry never crosses such a range. The source is the text of the queue's identity:
cluster, namespace, group, topic, lite topic, broker and queue. rmqd 0.1.0 wrote only the queue; such entries still
count, for each cluster and group.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final
from urllib.parse import quote

from rmqd import Message, MessageQueue

from .stores import Store

FOLDER: Final = "_manifest"
RANGE: Final = 1_000_000
MOST_RUNS: Final = 20_000

Run = tuple[int, int]
"""The first and the last of consecutive offsets."""
_NamedRun = tuple[int, int, int, int, str]  # with the oldest and latest store time in its file, and its entry
_first_of_run: Final = itemgetter(0)
_last_of_run: Final = itemgetter(1)


@dataclass(frozen=True, slots=True)
class Entry:
    """The manifest's entry of a file."""

    file: str
    """Relative to the store's path."""
    rows: int
    size_bytes: int
    date: str
    topic: str
    source_topic: str
    """The topic of the queue: a group's retry topic, for retried messages."""
    broker_name: str
    queue_id: int
    offsets: tuple[Run, ...]
    oldest_store_timestamp: int
    """Of its messages, in milliseconds. A message that was stored earlier is a different one, regardless of its
    offset.
    """
    newest_store_timestamp: int
    """A message that was stored later is a different one, too."""

    def to_json(self) -> bytes:
        """Return the content of the entry's file."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class Place:
    """The paths of a file and its entry. The same messages always have the same paths."""

    file: str
    entry: str

    @classmethod
    def of(cls, source: str, queue: MessageQueue, date: str, topic: str, messages: Sequence[Message]) -> Place:
        """Return the paths for messages of one queue, date and topic, in the order of their offsets."""
        first, last = messages[0].queue_offset, messages[-1].queue_offset
        # with the time, because a recreated broker uses the same offsets and ids again
        ids = source + " ".join(f"{message.offset_msg_id} {message.store_timestamp}" for message in messages)
        digest = hashlib.sha256(ids.encode()).hexdigest()
        stem = f"{first:020}-{last:020}-{digest[:8]}"
        prefix = "" if queue.topic == topic else "retry-"
        name = f"{prefix}{quote(queue.broker_name, safe='')}-{queue.queue_id}-{stem}.parquet"
        folder = f"date={date}/topic={quote(topic, safe='')}"
        return cls(f"{folder}/{name}", f"{_folder(source, first // RANGE)}/{stem}.json")


def runs_of(offsets: Iterable[int]) -> tuple[Run, ...]:
    """Return ascending offsets as runs."""
    every = list(offsets)
    ends = [(one, other) for one, other in pairwise(every) if other != one + 1]
    return tuple(zip([every[0], *(begin for _, begin in ends)], [*(end for end, _ in ends), every[-1]], strict=True))


class ListedOffsets:
    """The offsets of one queue in the manifest, as far as it was read."""

    def __init__(self, store: Store, source: str, former: MessageQueue | None) -> None:
        """`former` is the queue that rmqd 0.1.0 used as the source's name."""
        self._store = store
        self._sources = [source]
        if former is not None:
            names = (former.topic, former.broker_name, str(former.queue_id))
            self._sources.append("@".join(quote(name, safe="") for name in names))
        self._known: dict[str, list[_NamedRun]] = {}  # the runs of each entry that was read
        self._names: list[tuple[int, str]] = []  # the entries by their last offsets
        self._layers: list[list[_NamedRun]] = []  # the runs of all entries, as returned by _layers_of
        self._floor: dict[int, int] = {}  # for each range, the lowest offset whose entries were read

    def knows(self, first: int, last: int) -> bool:
        """Return whether the manifest was read for these offsets."""
        return all(first >= self._floor.get(number, first + 1) for number in _ranges(first, last))

    def read(self, first: int, last: int) -> Reading:
        """Return the entries with these offsets or later ones, together with known entries.

        Blocks, and raises OSError. Call it in a thread, because there may be tens of thousands of entries. It does not
        see entries that are added or forgotten meanwhile.
        """
        known = self._known.copy()
        found = {
            name: _runs_in(name, json.loads(self._store.get(f"{folder}/{name}")))
            for folder in (_folder(source, number) for source in self._sources for number in _ranges(first, last))
            for name in self._store.names(folder)
            if name not in known and _last_of(name) >= first
        }
        return Reading.of(known | found) if found else Reading(known)

    def learn(self, first: int, last: int, reading: Reading) -> None:
        """Use the entries that were read for these offsets."""
        here, other = self._known, reading.known
        if reading.layers is not None:
            here, other = other, here
            self._known, self._names, self._layers = reading.known, reading.names, reading.layers
        for name in other.keys() - here.keys():
            self._add(name, other[name])
        for number in _ranges(first, last):
            self._floor[number] = min(first, self._floor.get(number, first))
        self._forget_below(first)

    def note(self, place: Place, entry: Entry) -> None:
        """Add an entry that was just written."""
        name = place.entry.rpartition("/")[2]
        if name not in self._known:
            self._add(name, _runs_in(name, asdict(entry)))
        self._forget_below(entry.offsets[0][0])

    def has(self, message: Message) -> bool:
        """Return whether a listed file contains this message."""
        offset, stored_ms = message.queue_offset, message.store_timestamp
        # a recreated topic starts at 0 again: its messages are different, and its runs overlap the old ones
        for layer in self._layers:
            at = bisect_right(layer, offset, key=_first_of_run) - 1
            if at >= 0:
                _, last, oldest, newest, _ = layer[at]
                if offset <= last and oldest <= stored_ms <= newest:
                    return True
        return False

    def _add(self, name: str, runs: list[_NamedRun]) -> None:
        self._known[name] = runs
        insort(self._names, (_last_of(name), name))
        for run in runs:
            for layer in self._layers:
                at = bisect_right(layer, run[0], key=_first_of_run)
                if (at == 0 or layer[at - 1][1] < run[0]) and (at == len(layer) or run[1] < layer[at][0]):
                    layer.insert(at, run)
                    break
            else:
                self._layers.append([run])

    def _forget_below(self, offset: int) -> None:
        """Forget the lower half if there are too many, except entries with this offset or later ones.

        Whole entries are forgotten. They are read again if their messages are redelivered.
        """
        left = sum(map(len, self._layers))
        if left <= MOST_RUNS:
            return
        forgotten = 0
        for last, name in self._names:
            if left <= MOST_RUNS // 2 or last >= offset:
                break
            left -= len(self._known.pop(name))
            forgotten += 1
        if not forgotten:
            return
        lowest = self._names[forgotten - 1][0] + 1
        del self._names[:forgotten]
        self._floor = {number: max(floor, lowest) for number, floor in self._floor.items()}
        for layer in self._layers:
            end = bisect_left(layer, lowest, key=_last_of_run)
            layer[:end] = [run for run in layer[:end] if run[4] in self._known]
        self._layers = [layer for layer in self._layers if layer]


@dataclass(frozen=True, slots=True)
class Reading:
    """The entries of a queue after reading, in the form of ListedOffsets."""

    known: dict[str, list[_NamedRun]]
    names: list[tuple[int, str]] = field(default_factory=list)
    layers: list[list[_NamedRun]] | None = None
    """None if no new entry was read."""

    @classmethod
    def of(cls, known: dict[str, list[_NamedRun]]) -> Reading:
        """Return the reading for these entries."""
        names = sorted((_last_of(name), name) for name in known)
        return cls(known, names, _layers_of(run for _, name in names for run in known[name]))


def _layers_of(runs: Iterable[_NamedRun]) -> list[list[_NamedRun]]:
    """Return the runs in as few lists as possible. Each list ascends, and its runs do not overlap."""
    layers: list[list[_NamedRun]] = []
    for run in sorted(runs):
        for layer in layers:
            if layer[-1][1] < run[0]:
                layer.append(run)
                break
        else:
            layers.append([run])
    return layers


def _runs_in(name: str, entry: dict[str, Any]) -> list[_NamedRun]:
    # some entries lack the oldest time
    oldest, newest = entry.get("oldest_store_timestamp", 0), entry["newest_store_timestamp"]
    return [(first, last, oldest, newest, name) for first, last in entry["offsets"]]


def _folder(source: str, number: int) -> str:
    return f"{FOLDER}/{source}/{number:06}"


def _ranges(first: int, last: int) -> range:
    return range(first // RANGE, last // RANGE + 1)


def _last_of(name: str) -> int:
    """Return the last offset of an entry, from its name; -1 if the file is not an entry."""
    parts = name.removesuffix(".json").split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else -1
