"""The manifest of a batch, the names of its files, and the checks of a changed schema. No I/O.

A batch is written to a folder that no reader sees. Its manifest, written atomically, commits it. Without a manifest the
batch is written again; with a manifest its files only have to be moved to the output folder, with retries.

Which small files of a folder are merged, and the stored plan. No I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from rmqd.errors import RmqdError
from rmqd.spark.pipelines.pipeline_counts import MicroBatch
from rmqd.spark.session.hadoop_folder import FileFacts

# Spark's names: part-00003-<uuid of the job>.c000.snappy.parquet, or -c000 without partitions
_STAGED: Final = re.compile(r"part-(?P<part>[0-9]+)-[0-9a-f-]{36}[.-]c(?P<file>[0-9]+)(?P<ending>\..*)")
_PUBLISHED: Final = re.compile(r"(?P<query>[0-9a-f-]{36})-(?P<batch>[0-9]{9,})-.*")
_MANIFEST: Final = re.compile(r"(?P<batch>[0-9]{9,})-[0-9a-f]{12}\.json")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """A written batch whose files must be moved to the folder of the readers."""

    staged: str
    """The folder in which it was written."""
    moves: tuple[tuple[str, str], ...]
    """Source below `staged`, and destination in the folder of the readers."""
    replaced: tuple[str, ...]
    """Files of earlier attempts that are not part of the batch; to be deleted before the moves."""
    rows: int

    def encode(self) -> bytes:
        """The manifest as JSON."""
        tree = {"version": _VERSION, "staged": self.staged, "moves": self.moves, "replaced": self.replaced}
        return json.dumps({**tree, "rows": self.rows}, indent=1).encode()

    @staticmethod
    def decode(content: bytes, name: str) -> Manifest:
        """Read the output of `encode`. Raises RmqdError with the file's name for any other content."""
        try:
            tree = json.loads(content)
            version = tree["version"]
            moves = tuple((str(source), str(target)) for source, target in tree["moves"])
            manifest = Manifest(str(tree["staged"]), moves, tuple(map(str, tree["replaced"])), int(tree["rows"]))
        except (ValueError, KeyError, TypeError) as error:
            raise RmqdError(f"{name} is not a valid batch manifest: {error!r}") from error
        if version != _VERSION:
            raise RmqdError(
                f"{name} was written by another version of rmqd: its format is {version}; expected {_VERSION}"
            )
        return manifest


def manifest_name(batch: MicroBatch) -> str:
    """Return the name of the batch's manifest. Names sort by batch number."""
    return f"{batch.number:09}-{batch.plan_id}.json"


def batch_of_manifest(name: str) -> int | None:
    """Return the batch number of a manifest; None for other files."""
    match = _MANIFEST.fullmatch(name)
    return int(match["batch"]) if match else None


def manifest_of(batch: MicroBatch, staged: str, files: Iterable[str], former: Iterable[str], rows: int) -> Manifest:
    """Return the manifest of a batch. `files` were written by Spark below `staged`; `former` are of other attempts.

    `staged` ends with the name of the attempt, which starts with the batch number. File names contain it, so a driver
    that resumes late and deletes the files of earlier attempts cannot delete files of a later attempt.

    Raises RmqdError for a file that is not named like Spark's files: skipping it would lose its rows.
    """
    moves, attempt = [], staged.rpartition("/")[2]
    for path in files:
        parent, _, name = path.rpartition("/")
        if name.startswith(("_", ".")):
            continue
        match = _STAGED.fullmatch(name)
        if match is None:
            raise RmqdError(f"Spark wrote {path}; expected a name like part-<number>-<id>.c<number>.parquet")
        file = f"{batch.query}-{attempt}-{match['part']}-{match['file']}{match['ending']}"
        moves.append((path, f"{parent}/{file}" if parent else file))
    return Manifest(staged, tuple(moves), tuple(former), rows)


def query_and_batch(name: str) -> tuple[str, int] | None:
    """Return the query and batch of a file by its name; None if the sink did not write it."""
    match = _PUBLISHED.fullmatch(name)
    return (match["query"], int(match["batch"])) if match else None


def files_since(batch: MicroBatch, files: Iterable[str]) -> list[str]:
    """Return the files that this batch or a later one of the same query put into the folder."""
    found = []
    for path in files:
        of = query_and_batch(path.rpartition("/")[2])
        if of is not None and of[0] == batch.query and of[1] >= batch.number:
            found.append(path)
    return found


@dataclass(frozen=True, slots=True)
class Layout:
    """The partitioning of a folder's files, and all columns so far with their SQL types."""

    partition_by: tuple[str, ...]
    columns: Mapping[str, str]

    def encode(self) -> bytes:
        """The layout as JSON."""
        return json.dumps({"partition_by": self.partition_by, "columns": dict(self.columns)}, indent=1).encode()

    @staticmethod
    def decode(content: bytes, name: str) -> Layout:
        """Read the output of `encode`. Raises RmqdError with the file's name for any other content."""
        try:
            tree = json.loads(content)
            return Layout(tuple(tree["partition_by"]), {str(key): str(kind) for key, kind in tree["columns"].items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RmqdError(f"{name} does not describe the columns of a folder: {error!r}") from error

    def problems(self) -> list[str]:
        """Return the problems of this layout alone."""
        unknown = [name for name in self.partition_by if name not in self.columns]
        problems = [
            f"partition_by: unknown column {name}; expected one of {', '.join(self.columns)}" for name in unknown
        ]
        if not set(self.columns) - set(self.partition_by):
            problems.append("partition_by: no column is left for the files; expected at least one other column")
        return problems

    def problems_after(self, former: Layout) -> list[str]:
        """Return why files of this layout cannot share a folder with files of `former`. Columns may come and go."""
        problems = []
        if self.partition_by != former.partition_by:
            there, now = _listed(former.partition_by), _listed(self.partition_by)
            problems.append(f"partition_by: the folder is partitioned by {there}, and the group by {now}")
        for name, kind in self.columns.items():
            there = former.columns.get(name, kind)
            if there != kind:
                problems.append(f"column {name}: is now {kind}, but {there} in the folder; no reader can read both")
        return problems

    def with_former(self, former: Layout) -> Layout:
        """Add the columns that no longer exist, so that they cannot return with another type."""
        return Layout(self.partition_by, {**former.columns, **self.columns})


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


_COMPACTED: Final = "compacted-"
_ENDING: Final = ".parquet"
_MOST_FILES: Final = 1000  # limit for one chunk; readers see no file of it until all are renamed
_SMALL: Final = 0.75  # fraction of the wanted size; larger files stay as they are


@dataclass(frozen=True, slots=True)
class Chunk:
    """Files of one partition to merge into one."""

    partition: str
    """Path below the folder; empty if the folder is not partitioned."""
    names: tuple[str, ...]
    size_bytes: int

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths below the folder."""
        return tuple(f"{self.partition}/{name}" if self.partition else name for name in self.names)


def chunks_of(
    files: Mapping[str, FileFacts], *, before_ms: int, wanted_bytes: int, unsettled: Set[str] = frozenset()
) -> list[Chunk]:
    """Return the files to merge: small files of the sink or of a compaction, last modified before `before_ms`.

    Files of the compactions `unsettled` are excluded.
    """
    found: list[Chunk] = []
    by_partition: dict[str, dict[str, int]] = {}
    for path, facts in sorted(files.items()):
        partition, _, name = path.rpartition("/")
        is_settled = name.startswith(_COMPACTED) and name[len(_COMPACTED) : -len(_ENDING)] not in unsettled
        is_ours = query_and_batch(name) is not None or is_settled
        is_small = facts.size_bytes < _SMALL * wanted_bytes
        if is_ours and is_small and name.endswith(_ENDING) and facts.modified_ms < before_ms:
            by_partition.setdefault(partition, {})[name] = facts.size_bytes
    for partition, sizes in by_partition.items():
        found += (
            Chunk(partition, names, sum(sizes[name] for name in names)) for names in _grouped(sizes, wanted_bytes)
        )
    return found


def _grouped(sizes: Mapping[str, int], wanted_bytes: int) -> Iterator[tuple[str, ...]]:
    """Group files up to the wanted size. A single file stays as it is."""
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and (total + size > wanted_bytes or len(names) >= _MOST_FILES):
            if len(names) > 1:
                yield tuple(names)
            names, total = [], 0
        names.append(name)
        total += size
    if len(names) > 1:
        yield tuple(names)


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """One written file that replaces others."""

    sources: tuple[str, ...]
    """Paths below the folder of the readers."""
    written: str
    """Path of the new file, below the compaction's own folder."""
    target: str
    """Destination of the new file, below the folder of the readers."""
    rows: int

    def encode(self) -> bytes:
        """The plan as JSON."""
        tree = {"version": _VERSION, "sources": self.sources, "written": self.written, "target": self.target}
        return json.dumps({**tree, "rows": self.rows}, indent=1).encode()

    @staticmethod
    def decode(content: bytes, name: str) -> CompactionPlan:
        """Read the output of `encode`. Raises RmqdError with the file's name for any other content."""
        try:
            tree = json.loads(content)
            sources = tuple(str(one) for one in tree["sources"])
            plan = CompactionPlan(sources, str(tree["written"]), str(tree["target"]), int(tree["rows"]))
            version = tree["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise RmqdError(f"{name} is not a valid compaction plan: {error!r}") from error
        if version != _VERSION:
            raise RmqdError(
                f"{name} was written by another version of rmqd: its format is {version}; expected {_VERSION}"
            )
        return plan


def plan_of(chunk: Chunk, compaction: str, written: str, rows: int) -> CompactionPlan:
    """Return the plan of a chunk whose merged file is written."""
    name = f"{_COMPACTED}{compaction}{_ENDING}"
    target = f"{chunk.partition}/{name}" if chunk.partition else name
    return CompactionPlan(chunk.paths, written, target, rows)


def batches_in(names: Iterable[str]) -> dict[str, int]:
    """Return the last batch of each query, from the names of the sink's files."""
    last: dict[str, int] = {}
    for name in names:
        if found := query_and_batch(name.rpartition("/")[2]):
            query, batch = found
            last[query] = max(batch, last.get(query, 0))
    return last
