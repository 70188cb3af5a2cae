"""The JSON files that describe an archive of Parquet files. No I/O.

For each complete Parquet file, the handler `parquet` writes an entry below `_manifest` in the archive, with the offsets
of one queue that are in the file. The sink `parquet` of a pipeline has a staging folder next to the archive. It
contains the manifest of each query's last batch, the layout of all files, and the plans of compactions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from rmqd.errors import RmqdError

T = TypeVar("T")

ENTRIES: Final = "_manifest"
ENTRY_ENDING: Final = ".json"
FORMAT: Final = 1


def encode(value: Any) -> bytes:
    """Return the content of the JSON file for one of these dataclasses. Fields with their default are left out."""
    optional = {one.name: one.default for one in fields(value) if one.default is not MISSING}
    return json.dumps({name: one for name, one in asdict(value).items() if one != optional.get(name, MISSING)}).encode()


def decode(kind: type[T], content: bytes, name: str) -> T:
    """Read the output of `encode`. Raises RmqdError with the file's name for any other content."""
    try:
        made = TypeAdapter(kind).validate_json(content)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False, include_input=False)
        where = ".".join(map(str, first["loc"]))
        raise RmqdError(f"{name} {_WRONG[kind]}: {where}{': ' if where else ''}{first['msg']}") from None
    version = getattr(made, "version", FORMAT)
    if version != FORMAT:
        raise RmqdError(f"{name} was written by another version of rmqd: its format is {version}; expected {FORMAT}")
    return made


Run = tuple[int, int]
"""The first and the last of consecutive offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """The entry of one file that a handler wrote, or that a compaction made of such files."""

    file: str
    """Path below the archive."""
    rows: int
    size_bytes: int
    date: str
    topic: str
    source_topic: str
    """The topic of the queue: a group's retry topic, for retried messages."""
    broker_name: str
    queue_id: int
    offsets: tuple[Run, ...]
    oldest_store_timestamp: int = 0
    """The oldest store time of the file's messages, in milliseconds since 1970; 0 in entries that lack it. A message
    that was stored earlier is not in the file, even if `offsets` contains the message's offset.
    """
    newest_store_timestamp: int
    """The latest store time of the file's messages. A message that was stored later is not in the file, either."""
    stored: tuple[Run, ...] = ()
    """For a compacted file: the oldest and latest store time in the source file of each run of `offsets`."""


def merge_entries(entries: Sequence[ManifestEntry], file: str, size_bytes: int) -> ManifestEntry:
    """Return the entry of a compacted file. The `entries` of its source files have the same queue, date and topic."""
    runs = [
        (run, stored)
        for one in entries
        for run, stored in zip(
            one.offsets,
            one.stored or [(one.oldest_store_timestamp, one.newest_store_timestamp)] * len(one.offsets),
            strict=True,
        )
    ]
    first = entries[0]
    return ManifestEntry(
        file=file,
        rows=sum(one.rows for one in entries),
        size_bytes=size_bytes,
        date=first.date,
        topic=first.topic,
        source_topic=first.source_topic,
        broker_name=first.broker_name,
        queue_id=first.queue_id,
        offsets=tuple(run for run, _ in runs),
        oldest_store_timestamp=min(one.oldest_store_timestamp for one in entries),
        newest_store_timestamp=max(one.newest_store_timestamp for one in entries),
        stored=tuple(stored for _, stored in runs),
    )


def entry_stem(first: int, last: int, identity: str) -> str:
    """Return the stem of an entry's file name. The Parquet file's name ends with the same stem."""
    return f"{first:020}-{last:020}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def offsets_in_stem(stem: str) -> Run | None:
    """Return the first and last offset in the name of an entry; None for other files."""
    match stem.split("-"):
        case [first, last, _] if first.isdigit() and last.isdigit():
            return int(first), int(last)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchManifest:
    """The files of a pipeline's micro-batch. Once the manifest is written, only the moves to the archive remain."""

    version: int
    staged: str
    """The folder in which the files were written."""
    moves: tuple[tuple[str, str], ...]
    """For each file, its path below `staged`, and its path in the archive."""
    replaced: tuple[str, ...]
    """Files of earlier attempts that are not part of the batch. They must be deleted before the moves."""
    rows: int


_PUBLISHED: Final = re.compile(r"(?P<query>[0-9a-f-]{36})-(?P<batch>[0-9]{9,})-.*")


def parse_sink_file_name(path: str) -> tuple[str, int] | None:
    """Return the query and batch in the name of a file; None if the sink did not write the file."""
    match = _PUBLISHED.fullmatch(path.rpartition("/")[2])
    return (match["query"], int(match["batch"])) if match else None


def last_batches(files: Iterable[str]) -> dict[str, int]:
    """Return the last batch of each query, from the names of the sink's files."""
    return dict(sorted(filter(None, map(parse_sink_file_name, files))))  # the highest batch of a query is last


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """The plan of a compaction: one new file replaces several files of the archive."""

    version: int
    sources: tuple[str, ...]
    """Paths of the replaced files and of their entries, below the archive."""
    written: str
    """Path of the new file, below the compaction's own folder."""
    target: str
    """Destination of the new file, below the archive."""
    rows: int
    entry: str = ""
    """Path for the new file's entry, below the archive; empty if the replaced files have no entries."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The partitioning of a pipeline's files, and all columns so far with their SQL types."""

    partition_by: tuple[str, ...]
    columns: Mapping[str, str]

    def problems(self) -> list[str]:
        """Return the problems of this layout alone."""
        unknown = [name for name in self.partition_by if name not in self.columns]
        problems = [
            f"partition_by: unknown column {name}; expected one of {', '.join(self.columns)}" for name in unknown
        ]
        if not set(self.columns) - set(self.partition_by):
            problems.append("partition_by: it has all columns, so none is left for the files; expected fewer columns")
        return problems

    def problems_after(self, former: Layout) -> list[str]:
        """Return why files of this layout cannot share a folder with files of `former`. Missing columns are allowed."""
        problems = []
        if self.partition_by != former.partition_by:
            there, now = (", ".join(one.partition_by) or "nothing" for one in (former, self))
            problems.append(f"partition_by: the folder is partitioned by {there}, and the group by {now}")
        for name, kind in self.columns.items():
            there = former.columns.get(name, kind)
            if there != kind:
                problems.append(f"column {name}: is now {kind}, but {there} in the folder; no reader can read both")
        return problems

    def with_former(self, former: Layout) -> Layout:
        """Return this layout plus the removed columns of `former`, so that they cannot return with another type."""
        return Layout(self.partition_by, {**former.columns, **self.columns})


_WRONG: Final[Mapping[type, str]] = {
    ManifestEntry: "is not a valid entry of a file",
    BatchManifest: "is not a valid batch manifest",
    CompactionPlan: "is not a valid compaction plan",
    Layout: "does not describe the columns of a folder",
}
