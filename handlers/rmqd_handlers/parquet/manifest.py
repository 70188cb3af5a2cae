"""The manifest: a file of JSON for each Parquet file that is whole. It says which offsets of a queue the file has.

An entry's folder is that of its source and of a range of a million offsets, so that what was written of some offsets
is found without reading the whole manifest. An entry never crosses such a range. The source is the text of the queue's
identity: cluster, namespace, group, topic, lite topic, broker and queue. rmqd 0.1.0 wrote the queue alone, and such
entries still count, for each cluster and group.
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
"""The first and the last offset of some that follow each other."""
_NamedRun = tuple[int, int, int, int, str]  # with the oldest and newest time of storing of its file, and its entry
_first_of_run: Final = itemgetter(0)
_last_of_run: Final = itemgetter(1)


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
    def of(cls, source: str, queue: MessageQueue, date: str, topic: str, messages: Sequence[Message]) -> Place:
        """The place of messages of one queue, of one date and topic, in the order of their offsets."""
        first, last = messages[0].queue_offset, messages[-1].queue_offset
        # with the time: a broker that was made anew gives the same offsets and ids once more
        ids = source + " ".join(f"{message.offset_msg_id} {message.store_timestamp}" for message in messages)
        digest = hashlib.sha256(ids.encode()).hexdigest()
        stem = f"{first:020}-{last:020}-{digest[:8]}"
        prefix = "" if queue.topic == topic else "retry-"
        name = f"{prefix}{quote(queue.broker_name, safe='')}-{queue.queue_id}-{stem}.parquet"
        folder = f"date={date}/topic={quote(topic, safe='')}"
        return cls(f"{folder}/{name}", f"{_folder(source, first // RANGE)}/{stem}.json")


def runs_of(offsets: Iterable[int]) -> tuple[Run, ...]:
    """Offsets that ascend, as runs."""
    every = list(offsets)
    ends = [(one, other) for one, other in pairwise(every) if other != one + 1]
    return tuple(zip([every[0], *(begin for _, begin in ends)], [*(end for end, _ in ends), every[-1]], strict=True))


class ListedOffsets:
    """Which offsets of one queue the manifest has, as far as it was read."""

    def __init__(self, store: Store, source: str, former: MessageQueue | None) -> None:
        """`former` is the queue by which rmqd 0.1.0 named the source."""
        self._store = store
        self._sources = [source]
        if former is not None:
            names = (former.topic, former.broker_name, str(former.queue_id))
            self._sources.append("@".join(quote(name, safe="") for name in names))
        self._known: dict[str, list[_NamedRun]] = {}  # the runs of each entry that was read
        self._names: list[tuple[int, str]] = []  # of those entries, by their last offsets
        self._layers: list[list[_NamedRun]] = []  # their runs, as _layers_of gives them
        self._floor: dict[int, int] = {}  # by range: the offset from which on its entries were read

    def knows(self, first: int, last: int) -> bool:
        """Whether what the manifest has of these offsets was read."""
        return all(first >= self._floor.get(number, first + 1) for number in _ranges(first, last))

    def read(self, first: int, last: int) -> Reading:
        """Entries that have some of these offsets or later ones, with those that are known.

        Blocks, and raises OSError. It is for a thread, as there may be tens of thousands of entries: entries that are
        noted meanwhile are not in it, and those that are forgotten meanwhile are.
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
        """Take over what was read for these offsets."""
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
        """Note an entry that was just written."""
        name = place.entry.rpartition("/")[2]
        if name not in self._known:
            self._add(name, _runs_in(name, asdict(entry)))
        self._forget_below(entry.offsets[0][0])

    def has(self, message: Message) -> bool:
        """Whether a file that is listed has this message."""
        offset, stored_ms = message.queue_offset, message.store_timestamp
        # a topic that is deleted and made anew begins again at 0: its messages are others, and runs of both overlap
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
        """Forget the lowest half where there is too much, but nothing of this offset or later ones.

        Entries are forgotten as a whole, and read again if messages of them should come.
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
    """What is known of a queue when entries were read, as ListedOffsets has it."""

    known: dict[str, list[_NamedRun]]
    names: list[tuple[int, str]] = field(default_factory=list)
    layers: list[list[_NamedRun]] | None = None
    """None where no entry was read that was not known."""

    @classmethod
    def of(cls, known: dict[str, list[_NamedRun]]) -> Reading:
        """Of entries that are known, and such as were read."""
        names = sorted((_last_of(name), name) for name in known)
        return cls(known, names, _layers_of(run for _, name in names for run in known[name]))


def _layers_of(runs: Iterable[_NamedRun]) -> list[list[_NamedRun]]:
    """The runs, in as few lists as there are runs at one offset: each ascends, and its runs do not overlap."""
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
    # some entries do not say the oldest
    oldest, newest = entry.get("oldest_store_timestamp", 0), entry["newest_store_timestamp"]
    return [(first, last, oldest, newest, name) for first, last in entry["offsets"]]


def _folder(source: str, number: int) -> str:
    return f"{FOLDER}/{source}/{number:06}"


def _ranges(first: int, last: int) -> range:
    return range(first // RANGE, last // RANGE + 1)


def _last_of(name: str) -> int:
    """The last offset of an entry, by its name; -1 for a file that is none."""
    parts = name.removesuffix(".json").split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else -1
