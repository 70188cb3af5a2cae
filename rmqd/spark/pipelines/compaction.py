"""Compacts Parquet folders: merges small files into large files, while a group writes to the folder. Without Spark.

A process may be killed at any time. Each compaction has a folder in the staging folder. The new file is written to this
folder, and then a plan is stored there. From then on, every process that finds the plan carries it out: it moves each
small file from the output folder to the compaction's folder. If all small files were available, the new file is moved
to the output folder. This single rename commits the compaction. If another compaction has already taken a small file,
the new file is renamed so that it is never used, and the small files are moved back. Readers never see a row in two
files.

Several processes may carry out the same plan, and some may take a file that another process has just put back. So
after an undone compaction only the plan is deleted, never the compaction's folder, which may contain taken files. If
the folder has no plan, its taken files are put back. After a successful compaction, the taken files are deleted first
and the plan last. A new file can be compacted again only when nothing remains of the compaction that wrote it.

The handler `parquet` also writes a manifest entry for each file, to recognize redelivered messages. A compaction moves
the entries like their files. Until the compaction has ended, the new entry has another file name ending. The handler
reads entries with this ending, and readers ignore them.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

import structlog

from rmqd.errors import RmqdError
from rmqd.handler_api.destinations.archive_manifest import (
    ENTRIES,
    ENTRY_ENDING,
    FORMAT,
    CompactionPlan,
    ManifestEntry,
    decode,
    encode,
    entry_stem,
    last_batches,
    merge_entries,
    offsets_in_stem,
    parse_sink_file_name,
)
from rmqd.spark.session.hadoop_folder import FileFacts

log = structlog.get_logger(__name__)

COMPACTIONS_FOLDER: Final = ".compactions"
"""The folder for compactions in the staging folder. No group can have this name for its own staging folder."""
_PLAN: Final = "plan.json"
_BATCHES: Final = "batches"
_WRITTEN: Final = "written"
_ENTRY: Final = "entry"
_TAKEN: Final = "taken"
_GIVEN_UP: Final = "given_up"
_DONE: Final = "done"
_COVER_ENDING: Final = ".compacting"
_DAY_MS: Final = 24 * 3600 * 1000
_RECORD: Final = re.compile(r"(?P<query>[0-9a-f-]{36})-(?P<batch>[0-9]{9,})")
_COMPACTED: Final = "compacted-"
_ENDING: Final = ".parquet"
_MAX_FILES: Final = 1000  # limit for one chunk, because readers see none of its rows while its files are replaced
_SMALL: Final = 0.75  # files of at least this fraction of the wanted size are not merged


@dataclass(frozen=True, slots=True)
class CompactionChunk:
    """Files of one partition that are merged into one new file."""

    partition: str
    """The partition's path below the output folder; empty if the folder is not partitioned."""
    names: tuple[str, ...]
    size_bytes: int
    entries: tuple[str, ...] = ()
    """The path of each file's manifest entry; empty if the files were not written by the handler `parquet`."""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self.path(name) for name in self.names)

    def path(self, name: str) -> str:
        return f"{self.partition}/{name}" if self.partition else name

    def plan(self, compaction: str, written: str, rows: int) -> CompactionPlan:
        name, entry = f"{_COMPACTED}{compaction}{_ENDING}", ""
        if self.entries:
            offsets = [run for one in self.names if (run := offsets_in_stem(_stem_in(one)))]
            stem = entry_stem(min(offsets)[0], max(last for _, last in offsets), compaction)
            name = f"{self.names[0].removesuffix(_stem_in(self.names[0]) + _ENDING)}{stem}{_ENDING}"
            entry = f"{self.entries[0].rpartition('/')[0]}/{stem}{ENTRY_ENDING}"
        return CompactionPlan(
            version=FORMAT,
            sources=(*self.entries, *self.paths),
            written=written,
            target=self.path(name),
            rows=rows,
            entry=entry,
        )


def chunks_to_compact(
    files: Mapping[str, FileFacts], *, before_ms: int, wanted_bytes: int, unfinished: Set[str] = frozenset()
) -> list[CompactionChunk]:
    """Return the chunks of files to merge: rmqd's small files that were last modified before `before_ms`.

    rmqd's files have a manifest entry, or were written by the sink or by a compaction that is not in `unfinished`.
    Files with manifest entries are merged with files of the same queue only.
    """
    entries: dict[str, list[str]] = {}
    for path in files:
        if path.startswith(f"{ENTRIES}/") and path.endswith(ENTRY_ENDING):
            entries.setdefault(path.rpartition("/")[2].removesuffix(ENTRY_ENDING), []).append(path)
    unsettled_stems = {entry_stem(0, 0, one).rpartition("-")[2] for one in unfinished}
    groups: dict[tuple[str, str], dict[str, int]] = {}
    for path, facts in sorted(files.items()):
        partition, _, name = path.rpartition("/")
        if facts.size_bytes >= _SMALL * wanted_bytes or facts.modified_ms >= before_ms or not name.endswith(_ENDING):
            continue
        stem = _stem_in(name)
        its_entries = entries.get(stem, [])
        if its_entries:
            is_ours = len(its_entries) == 1 and stem.rpartition("-")[2] not in unsettled_stems
        elif name.startswith(_COMPACTED):
            is_ours = name[len(_COMPACTED) : -len(_ENDING)] not in unfinished
        else:
            is_ours = parse_sink_file_name(name) is not None
        if is_ours:
            folder = its_entries[0].rpartition("/")[0] if its_entries else ""
            groups.setdefault((partition, folder), {})[name] = facts.size_bytes
    return [
        CompactionChunk(
            partition,
            names,
            sum(sizes[name] for name in names),
            tuple(f"{folder}/{_stem_in(name)}{ENTRY_ENDING}" for name in names if folder),
        )
        for (partition, folder), sizes in groups.items()
        for names in _grouped(sizes, wanted_bytes)
    ]


def _stem_in(name: str) -> str:
    """Return the stem in a file's name, which is the name of the file's manifest entry without ENTRY_ENDING."""
    return "-".join(name.removesuffix(_ENDING).split("-")[-3:])


def _grouped(sizes: Mapping[str, int], wanted_bytes: int) -> Iterator[tuple[str, ...]]:
    """Yield groups of at least two files, each up to the wanted total size and _MAX_FILES."""
    groups: list[list[str]] = [[]]
    total = 0
    for name, size in sizes.items():
        if total + size > wanted_bytes or len(groups[-1]) >= _MAX_FILES:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += size
    return (tuple(names) for names in groups if len(names) > 1)


class CompactedBatches:
    """Records, for each query, the last batch that has rows in a compacted file. Used on a driver.

    A sink reads the records after a reset of its checkpoint. Several compactions may write records at the same time. So
    a record never changes: it is an empty file whose name contains the query and the batch. Of several records of a
    query, the record with the highest batch is valid. A lower record is deleted when both records are a day old, so
    that a concurrent listing cannot miss both.
    """

    def __init__(self, staging: Any, path: str) -> None:
        """`staging` is a `HadoopFolder`. `path` is a folder in `staging` that contains only the records."""
        self._staging = staging
        self._path = path

    def add(self, batches: Mapping[str, int]) -> None:
        """Record the last batch of each query. If this raises RmqdError, do not take any files of these queries."""
        for query, batch in batches.items():
            if self.last_batch(query) >= batch:
                continue
            path = f"{self._path}/{query}-{batch:09}"
            # do not replace an existing record, because on some stores the file would be missing for a moment
            if not self._staging.put_new(path, b"") and self.last_batch(query) < batch:
                raise RmqdError(
                    f"{self._staging.url}/{path}, which records compacted batches, could not be written, and nothing "
                    "was moved; repeat the command when the folder is writable"
                )

    def last_batch(self, query: str) -> int:
        """Return the number of the query's last batch with rows in a compacted file; -1 if no batch was compacted."""
        return dict(self._recorded(self._staging.names(self._path))).get(query, -1)

    def delete_outdated(self, now_ms: int) -> None:
        """Delete records that are a day old, except the highest of these for each query. `now_ms` is the time now."""
        facts = self._staging.file_facts(self._path)
        old = self._recorded(
            path.rpartition("/")[2] for path, one in facts.items() if one.modified_ms < now_ms - _DAY_MS
        )
        last = dict(old)
        for query, batch in old:
            if batch < last[query]:
                self._staging.delete(f"{self._path}/{query}-{batch:09}")

    @staticmethod
    def _recorded(names: Iterable[str]) -> list[tuple[str, int]]:
        """Return the query and batch of each record in ascending order."""
        found = filter(None, map(_RECORD.fullmatch, names))
        return sorted((one["query"], int(one["batch"])) for one in found)


class Compactions:
    """The compactions of one output folder. Used on a driver."""

    def __init__(self, folder: Any, staging: Any) -> None:
        """`folder` and `staging` are a `HadoopFolder`; tests pass folders without a JVM."""
        self._folder = folder
        self._staging = staging
        self.batches = CompactedBatches(staging, f"{COMPACTIONS_FOLDER}/{_BATCHES}")

    def compact(self, chunk: CompactionChunk, write: Callable[[str], int]) -> CompactionPlan | None:
        """Merge the files of a chunk. Return None if one of the files was moved or deleted meanwhile. Raises RmqdError.

        `write` writes the rows of the files to a new folder below the staging folder, and returns the number of rows.
        """
        compaction = uuid.uuid4().hex
        ours = f"{COMPACTIONS_FOLDER}/{compaction}"
        rows = write(f"{ours}/{_WRITTEN}")
        facts = self._staging.file_facts(f"{ours}/{_WRITTEN}")
        written = [path for path in facts if path.endswith(_ENDING)]
        if len(written) != 1:
            where = f"{self._folder.url}/{chunk.partition}"
            raise RmqdError(f"{where}: Spark wrote {len(written)} files instead of one; the files were not replaced")
        self.batches.add(last_batches(chunk.names))
        plan = chunk.plan(compaction, written[0].removeprefix(f"{ours}/"), rows)
        if plan.entry:
            entry = encode(merge_entries(list(self._entries(chunk)), plan.target, facts[written[0]].size_bytes))
            for name in (_ENTRY, _COVER_ENDING):
                self._staging.put(f"{ours}/{name}", entry)
            self._staging.move(f"{ours}/{_COVER_ENDING}", self._folder, f"{plan.entry}{_COVER_ENDING}")
        self._staging.put(f"{ours}/{_PLAN}", encode(plan))
        return plan if self._carry_out(plan, compaction) else None

    def finish_all(self) -> None:
        """Carry out the plans of all compactions, even if the processes that wrote the plans are still running."""
        for compaction in self._staging.names(COMPACTIONS_FOLDER):
            if compaction == _BATCHES:
                continue
            name = f"{COMPACTIONS_FOLDER}/{compaction}/{_PLAN}"
            if not self._staging.exists(name):
                self._put_back(compaction)
                continue
            try:
                plan = decode(CompactionPlan, self._staging.read(name), f"{self._staging.url}/{name}")
                self._carry_out(plan, compaction)
            except RmqdError:
                if self._staging.exists(name):  # without the plan, another process has just finished or undone it
                    raise

    def delete_unplanned_files(self, now_ms: int) -> None:
        """Delete the folders of compactions that were undone, or killed before they had a plan.

        Also delete outdated records of batches. Folders with files younger than a day are kept, because the process
        that wrote the files may still be running.
        """
        for compaction in self.unfinished():
            ours = f"{COMPACTIONS_FOLDER}/{compaction}"
            facts = self._staging.file_facts(ours)
            is_kept = any(path == f"{ours}/{_PLAN}" or path.startswith(f"{ours}/{_TAKEN}/") for path in facts)
            if facts and not is_kept and all(one.modified_ms < now_ms - _DAY_MS for one in facts.values()):
                self._staging.delete(ours)
        self.batches.delete_outdated(now_ms)

    def unfinished(self) -> frozenset[str]:
        """Return the ids of the compactions that still have a folder below the staging folder."""
        return frozenset(self._staging.names(COMPACTIONS_FOLDER)) - {_BATCHES}

    def _entries(self, chunk: CompactionChunk) -> Iterator[ManifestEntry]:
        """Yield the manifest entries of a chunk's files. Raises RmqdError for an entry of another file."""
        for entry, path in zip(chunk.entries, chunk.paths, strict=True):
            found = decode(ManifestEntry, self._folder.read(entry), f"{self._folder.url}/{entry}")
            if found.file != path:
                raise RmqdError(f"{self._folder.url}/{entry} describes the file {found.file}; expected {path}")
            yield found

    def _carry_out(self, plan: CompactionPlan, compaction: str) -> bool:
        """Finish or undo a compaction, even if other processes do so too. Return whether the new file was committed."""
        ours = f"{COMPACTIONS_FOLDER}/{compaction}"
        is_done = self._staging.exists(f"{ours}/{_DONE}")
        if not is_done and self._staging.exists(f"{ours}/{plan.written}"):
            if self._take_all(plan, ours):
                self._moved(f"{ours}/{plan.written}", self._folder, plan.target)
            else:
                self._moved(f"{ours}/{plan.written}", self._staging, f"{ours}/{_GIVEN_UP}")
        if is_done or self._folder.exists(plan.target):
            if plan.entry:
                self._moved(f"{ours}/{_ENTRY}", self._folder, plan.entry)
            self._staging.put(f"{ours}/{_DONE}", b"")
            self._uncover(plan)
            self._staging.delete(f"{ours}/{_TAKEN}")
            self._staging.delete(ours)
            return True
        self._put_back(compaction)
        self._uncover(plan)
        log.warning("spark.compaction_undone", folder=self._folder.url, file=plan.target, files=len(plan.sources))
        self._staging.delete(f"{ours}/{_PLAN}")
        return False

    def _uncover(self, plan: CompactionPlan) -> None:
        if plan.entry:
            self._folder.delete(f"{plan.entry}{_COVER_ENDING}")

    def _put_back(self, compaction: str) -> None:
        """Move the taken files of an undone compaction back to the output folder."""
        taken = f"{COMPACTIONS_FOLDER}/{compaction}/{_TAKEN}/"
        for path in self._staging.files(taken.removesuffix("/")):
            self._moved(path, self._folder, path.removeprefix(taken))

    def _take_all(self, plan: CompactionPlan, ours: str) -> bool:
        """Move the small files to the compaction's folder. Return False if another compaction has taken one of them."""
        for path in plan.sources:
            taken = f"{ours}/{_TAKEN}/{path}"
            if self._folder.exists(path):
                self._moved(path, self._staging, taken, source=self._folder)
            if not self._staging.exists(taken):
                return not self._staging.exists(f"{ours}/{plan.written}")  # missing: another process has moved it
        return True

    def _moved(self, path: str, target: Any, target_path: str, source: Any = None) -> None:
        """Move a file from `source`, by default the staging folder, unless another process has already moved it."""
        source = source or self._staging
        try:
            source.move(path, target, target_path)
        except RmqdError:
            if source.exists(path):
                raise
