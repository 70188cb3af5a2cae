"""Which small files of a folder are merged, and the stored plan. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from rmqd.errors import RmqdError
from rmqd.spark.hadoop_folder import FileFacts
from rmqd.spark.pipelines.parquet_batch import query_and_batch

_COMPACTED: Final = "compacted-"
_ENDING: Final = ".parquet"
_MOST_FILES: Final = 1000  # in one chunk; readers miss each file until all of them are renamed
_SMALL: Final = 0.75  # fraction of the wanted size; larger files stay as they are
_VERSION: Final = 1


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
