"""The destination of files: a local folder, or an S3 bucket. A file appears completely or not at all.

The manifest has an entry for each complete Parquet file, with the offsets of one queue that are in the file. An entry's
folder is named by its source and a range of a million offsets, so that entries are found without reading the whole
manifest. An entry never crosses such a range. The source is the text of the queue's identity: cluster, namespace,
group, topic, lite topic, broker and queue. rmqd 0.1.0 wrote only topic, broker and queue: such entries apply to all
clusters and groups.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from rmqd import Message, MessageQueue
from rmqd.handler_api.destinations.archive_manifest import (
    ENTRIES,
    ENTRY_ENDING,
    ManifestEntry,
    entry_stem,
    offsets_in_stem,
)
from rmqd_handlers.jsonl import sync_folder

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem  # type: ignore[import-untyped]


SCHEME: Final = "s3://"


class S3Options(BaseModel):
    """The connection to S3. Missing options are found in the same way as by AWS's programs."""

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


class LocalFolder:
    """A local folder. The name of an unfinished file starts with a dot, so that readers of the folder skip the file.

    Names are relative to the folder. All methods block, and raise OSError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self) -> None:
        _make(self._path)
        if not os.access(self._path, os.W_OK | os.X_OK):
            raise PermissionError(f"{self._path} is not writable for this user")

    def put(self, name: str, content: Any) -> None:
        """Write a file durably. Readers see the complete file, or none."""
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
        sync_folder(path.parent)

    def get(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def names(self, folder: str) -> Sequence[str]:
        try:
            return [name for name in os.listdir(self._path / folder) if not name.startswith(".")]
        except FileNotFoundError:
            return ()


class Bucket:
    """An S3 bucket, or a folder in it, with the methods of `LocalFolder`. S3 shows an object when it is complete."""

    def __init__(self, url: str, options: S3Options, timeout_seconds: float) -> None:
        from pyarrow import fs  # type: ignore[import-untyped]

        self._fs: Any = fs
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
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),  # because `try_again` retries
            tls_ca_file_path=options.ca_file and str(options.ca_file),
            allow_delayed_open=True,  # small objects are sent in one request
        )

    def check(self) -> None:
        bucket = self._path.partition("/")[0]
        if self._files.get_file_info(bucket).type is not self._fs.FileType.Directory:
            raise FileNotFoundError(f"no bucket {bucket}, or these keys have no access to it")

    def put(self, name: str, content: Any) -> None:
        with self._files.open_output_stream(f"{self._path}/{name}") as stream:
            stream.write(content)

    def get(self, name: str) -> bytes:
        with self._files.open_input_stream(f"{self._path}/{name}") as stream:
            content: bytes = stream.read()
            return content

    def names(self, folder: str) -> Sequence[str]:
        found = self._files.get_file_info(self._fs.FileSelector(f"{self._path}/{folder}", allow_not_found=True))
        return [one.base_name for one in found if one.type is self._fs.FileType.File]


Store = LocalFolder | Bucket


def _make(folder: Path) -> None:
    """Create a folder and its parents durably."""
    missing = [folder, *folder.parents]
    missing = missing[: next((at for at, one in enumerate(missing) if one.exists()), len(missing))]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        sync_folder(one.parent)


OFFSETS_PER_FOLDER: Final = 1_000_000
MAX_RUNS: Final = 20_000

_FileRun = tuple[int, int, int, int, str]
"""A run of offsets: first and last offset, oldest and latest store time in the file, and the name of its entry."""
_first_of_run: Final = itemgetter(0)


def entry_of(
    source: str, queue: MessageQueue, date: str, messages: Sequence[Message], size_bytes: int
) -> tuple[str, ManifestEntry]:
    """Return the path of a file's entry, and the entry. The same messages always have the same paths.

    The messages must be of one date and topic, in the order of their offsets.
    """
    offsets, topic = [message.queue_offset for message in messages], messages[0].topic
    gaps = [(one, other) for one, other in pairwise(offsets) if other != one + 1]
    times = [message.store_timestamp for message in messages]
    # with store times, because a recreated broker uses the same offsets and message ids again
    ids = " ".join(f"{message.offset_msg_id} {message.store_timestamp}" for message in messages)
    stem = entry_stem(offsets[0], offsets[-1], source + ids)
    prefix = "" if queue.topic == topic else "retry-"
    name = f"{prefix}{quote(queue.broker_name, safe='')}-{queue.queue_id}-{stem}.parquet"
    return f"{_folder(source, offsets[0] // OFFSETS_PER_FOLDER)}/{stem}{ENTRY_ENDING}", ManifestEntry(
        file=f"date={date}/topic={quote(topic, safe='')}/{name}",
        rows=len(messages),
        size_bytes=size_bytes,
        date=date,
        topic=topic,
        source_topic=queue.topic,
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        offsets=tuple(
            zip([offsets[0], *(begin for _, begin in gaps)], [*(end for end, _ in gaps), offsets[-1]], strict=True)
        ),
        oldest_store_timestamp=min(times),
        newest_store_timestamp=max(times),
    )


class EntryIndex:
    """An index of one queue's entries, which finds out whether a file contains a message."""

    def __init__(self, known: dict[str, list[_FileRun]]) -> None:
        self.known = known
        """The runs of each entry, by the entry's file name."""
        # In each list the runs ascend and do not overlap. A recreated topic starts at 0 again, with other messages. Its
        # runs overlap the runs of the deleted topic, so they are in another list.
        self._layers: list[list[_FileRun]] = []
        for run in sorted(run for runs in known.values() for run in runs):
            self._place(run)

    def add(self, name: str, runs: list[_FileRun]) -> None:
        self.known[name] = runs
        for run in runs:
            self._place(run)

    @property
    def size(self) -> int:
        """The number of all runs."""
        return sum(map(len, self._layers))

    def has(self, message: Message) -> bool:
        offset, stored_ms = message.queue_offset, message.store_timestamp
        for layer in self._layers:
            at = bisect_right(layer, offset, key=_first_of_run) - 1
            if at >= 0:
                _, last, oldest, newest, _ = layer[at]
                if offset <= last and oldest <= stored_ms <= newest:
                    return True
        return False

    def _place(self, run: _FileRun) -> None:
        for layer in self._layers:
            at = bisect_right(layer, run[0], key=_first_of_run)
            if (at == 0 or layer[at - 1][1] < run[0]) and (at == len(layer) or run[1] < layer[at][0]):
                layer.insert(at, run)
                return
        self._layers.append([run])


ManifestReading = tuple[dict[str, list[_FileRun]], EntryIndex | None]


class ListedOffsets:
    """The offsets of one queue in the manifest, as far as the manifest was read."""

    def __init__(self, store: Store, source: str, former: MessageQueue | None) -> None:
        """`former` is the queue under whose name rmqd 0.1.0 wrote entries; None: ignore such entries."""
        self._store = store
        self._sources = [source]
        if former is not None:
            names = (former.topic, former.broker_name, str(former.queue_id))
            self._sources.append("@".join(quote(name, safe="") for name in names))
        self._index = EntryIndex({})
        self._most_runs = MAX_RUNS
        self._floor: dict[int, int] = {}  # for each range, the lowest offset whose entries were read

    def covers(self, first: int, last: int) -> bool:
        """Return whether the manifest was read for these offsets."""
        return all(first >= self._floor.get(number, first + 1) for number in _ranges(first, last))

    def read(self, first: int, last: int) -> ManifestReading:
        """Read new entries with these or later offsets. Returns the known entries, and an index of all entries.

        The index is None if no entry is new. Blocks, so call it in a thread: there may be tens of thousands of entries.
        Raises OSError. Entries that are added or forgotten meanwhile are not considered.
        """
        known = self._index.known.copy()
        found = {
            name: self._read_entry(folder, name)
            for folder in (_folder(source, number) for source in self._sources for number in _ranges(first, last))
            for name in self._store.names(folder)
            if name not in known and _last_of(name) >= first
        }
        return known, EntryIndex(known | found) if found else None

    def _read_entry(self, folder: str, name: str) -> list[_FileRun]:
        content = self._store.get(f"{folder}/{name}")
        try:
            return _runs_in(name, json.loads(content))
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"{folder}/{name} is damaged: {error!r}; replace it with a good copy") from error

    def add_reading(self, first: int, last: int, reading: ManifestReading) -> None:
        """Add the result of `read` for these offsets."""
        known, index = reading
        if index is not None:
            known, self._index = self._index.known, index
        for name in known.keys() - self._index.known.keys():
            self._index.add(name, known[name])
        for number in _ranges(first, last):
            self._floor[number] = min(first, self._floor.get(number, first))
        self._forget_below(first)

    def note(self, path: str, entry: ManifestEntry) -> None:
        name = path.rpartition("/")[2]
        if name not in self._index.known:
            self._index.add(name, _runs_in(name, asdict(entry)))
        self._forget_below(entry.offsets[0][0])

    def has(self, message: Message) -> bool:
        return self._index.has(message)

    def _forget_below(self, offset: int) -> None:
        """If there are too many runs, forget entries below an offset. They are read again for redelivered messages."""
        if self._index.size > self._most_runs:
            kept = {name: runs for name, runs in self._index.known.items() if _last_of(name) >= offset}
            self._index = EntryIndex(kept)
            self._most_runs = MAX_RUNS + self._index.size
            self._floor = {number: max(floor, offset) for number, floor in self._floor.items()}


def _runs_in(name: str, entry: Mapping[str, Any]) -> list[_FileRun]:
    offsets = entry["offsets"]
    # some entries lack the oldest time
    whole = (entry.get("oldest_store_timestamp", 0), entry["newest_store_timestamp"])
    times = entry.get("stored") or [whole] * len(offsets)
    return [(first, last, *time, name) for (first, last), time in zip(offsets, times, strict=True)]


def _folder(source: str, number: int) -> str:
    return f"{ENTRIES}/{source}/{number:06}"


def _ranges(first: int, last: int) -> range:
    return range(first // OFFSETS_PER_FOLDER, last // OFFSETS_PER_FOLDER + 1)


def _last_of(name: str) -> int:
    """Return the last offset of an entry, from its name; -1 if the file is not an entry.

    Only the part before the first dot counts, because a compaction also writes entries with another ending.
    """
    offsets = offsets_in_stem(name.partition(".")[0])
    return -1 if offsets is None else offsets[1]
