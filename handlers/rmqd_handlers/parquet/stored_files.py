"""The destination of files: a local folder, or an S3 bucket. A file appears completely or not at all.

The manifest: a JSON file for each complete Parquet file, with the file's offsets of a queue.

The folder of an entry is its source plus a range of a million offsets. So entries of given offsets are found without
reading the whole manifest. An entry never crosses such a range. The source is the text of the queue's identity:
cluster, namespace, group, topic, lite topic, broker and queue. rmqd 0.1.0 wrote only the queue; such entries still
count, for each cluster and group.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from rmqd import Message, MessageQueue

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem  # type: ignore[import-untyped]


SCHEME: Final = "s3://"


class S3Options(BaseModel):
    """The connection to S3. Missing options are taken from the same places as in AWS's programs."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    endpoint: str | None = Field(
        None, description="for a server other than AWS: http://host:9000 or https://host", pattern=r"^https?://[^/]+/?$"
    )
    region: str | None = Field(None, description="the region of the bucket")
    access_key: SecretStr | None = Field(None, description="needs secret_key; default: as AWS's programs find it")
    secret_key: SecretStr | None = Field(None, description="needs access_key")
    session_token: SecretStr | None = Field(None, description="for temporary keys")
    role_arn: str | None = Field(None, description="a role to assume, instead of keys")
    ca_file: Path | None = Field(None, description="the authorities to trust for the server's certificate")


class Store(Protocol):
    """Names are paths relative to the store. All methods block, and raise OSError."""

    def check(self) -> None:
        """Raise OSError if the store is not writable."""

    def put(self, name: str, content: Any) -> None:
        """Write a file. After the return it is durable. Readers never see a part of it."""

    def get(self, name: str) -> bytes:
        """Return the content of a file."""

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of files in a folder; empty if the folder is missing."""


class LocalFolder:
    """A folder. Unfinished files have names that start with a dot, which readers of folders skip."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self) -> None:
        _make(self._path)
        if not os.access(self._path, os.W_OK | os.X_OK):
            raise PermissionError(f"{self._path} is not writable for this user")

    def put(self, name: str, content: Any) -> None:
        path = self._path / name
        _make(path.parent)
        unfinished = path.with_name(f".{path.name}.tmp")
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        _sync(path.parent)

    def get(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def names(self, folder: str) -> Sequence[str]:
        try:
            return [name for name in os.listdir(self._path / folder) if not name.startswith(".")]
        except FileNotFoundError:
            return ()


class Bucket:
    """An S3 bucket, or a folder in it. An object appears when it was sent completely."""

    def __init__(self, url: str, options: S3Options, timeout_seconds: float) -> None:
        from pyarrow import fs  # type: ignore[import-untyped]

        self._path = url.removeprefix(SCHEME).rstrip("/")
        scheme, _, host = (options.endpoint or "").rstrip("/").rpartition("://")
        self._files: S3FileSystem = fs.S3FileSystem(
            access_key=options.access_key and options.access_key.get_secret_value(),
            secret_key=options.secret_key and options.secret_key.get_secret_value(),
            session_token=options.session_token and options.session_token.get_secret_value(),
            role_arn=options.role_arn,
            region=options.region,
            endpoint_override=host or None,
            scheme=scheme or "https",
            connect_timeout=timeout_seconds,
            request_timeout=timeout_seconds,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),  # `try_again` limits the time
            tls_ca_file_path=options.ca_file and str(options.ca_file),
            allow_delayed_open=True,  # small objects are sent in one request
        )

    def check(self) -> None:
        from pyarrow import fs

        bucket = self._path.partition("/")[0]
        if self._files.get_file_info(bucket).type is not fs.FileType.Directory:
            raise FileNotFoundError(f"no bucket {bucket}, or these keys have no access to it")

    def put(self, name: str, content: Any) -> None:
        with self._files.open_output_stream(f"{self._path}/{name}") as stream:
            stream.write(content)

    def get(self, name: str) -> bytes:
        with self._files.open_input_stream(f"{self._path}/{name}") as stream:
            content: bytes = stream.read()
            return content

    def names(self, folder: str) -> Sequence[str]:
        from pyarrow import fs

        found = self._files.get_file_info(fs.FileSelector(f"{self._path}/{folder}", allow_not_found=True))
        return [one.base_name for one in found if one.type is fs.FileType.File]


def _make(folder: Path) -> None:
    """Create a folder and its parents durably."""
    missing = [folder, *folder.parents]
    missing = missing[: next((at for at, one in enumerate(missing) if one.exists()), len(missing))]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        _sync(one.parent)


def _sync(folder: Path) -> None:
    """Make the names in a folder durable, not only the content of the files."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


FOLDER: Final = "_manifest"
RANGE: Final = 1_000_000
MOST_RUNS: Final = 20_000

Run = tuple[int, int]
"""The first and the last of consecutive offsets."""
_NamedRun = tuple[int, int, int, int, str]  # with the oldest and latest store time in its file, and its entry
_first_of_run: Final = itemgetter(0)
_last_of_run: Final = itemgetter(1)


@dataclass(frozen=True, slots=True)
class ManifestEntry:
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
class FilePlace:
    """The paths of a file and its entry. The same messages always have the same paths."""

    file: str
    entry: str

    @classmethod
    def of(cls, source: str, queue: MessageQueue, date: str, topic: str, messages: Sequence[Message]) -> FilePlace:
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

    def read(self, first: int, last: int) -> ManifestReading:
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
        return ManifestReading.of(known | found) if found else ManifestReading(known)

    def learn(self, first: int, last: int, reading: ManifestReading) -> None:
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

    def note(self, place: FilePlace, entry: ManifestEntry) -> None:
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
class ManifestReading:
    """The entries of a queue after reading, in the form of ListedOffsets."""

    known: dict[str, list[_NamedRun]]
    names: list[tuple[int, str]] = field(default_factory=list)
    layers: list[list[_NamedRun]] | None = None
    """None if no new entry was read."""

    @classmethod
    def of(cls, known: dict[str, list[_NamedRun]]) -> ManifestReading:
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
