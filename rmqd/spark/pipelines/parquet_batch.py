"""What makes files of Parquet exactly once: a batch's manifest, the names of its files, and what a schema may become.

Pure. A batch is written to a place where no reader looks. Its manifest, put there at once, is what decides: without it
the batch is written anew, with it the files only have to be moved to where they belong, as often as it takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rmqd.errors import RmqdError
from rmqd.spark.pipelines.micro_batch import MicroBatch

# as Spark names them: part-00003-<uuid of the job>.c000.snappy.parquet, or -c000 where nothing is partitioned
_STAGED: Final = re.compile(r"part-(?P<part>[0-9]+)-[0-9a-f-]{36}[.-]c(?P<file>[0-9]+)(?P<ending>\..*)")
_PUBLISHED: Final = re.compile(r"(?P<query>[0-9a-f-]{36})-(?P<batch>[0-9]{9,})-.*")
_MANIFEST: Final = re.compile(r"(?P<batch>[0-9]{9,})-[0-9a-f]{12}\.json")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """A batch that is written, and has to be moved to where readers look."""

    staged: str
    """The folder in which it was written."""
    moves: tuple[tuple[str, str], ...]
    """From where below it, to where in the folder that readers look at."""
    replaced: tuple[str, ...]
    """Files of former attempts that are no part of it, to be deleted before."""
    rows: int

    def encode(self) -> bytes:
        """The manifest as JSON."""
        tree = {"version": _VERSION, "staged": self.staged, "moves": self.moves, "replaced": self.replaced}
        return json.dumps({**tree, "rows": self.rows}, indent=1).encode()

    @staticmethod
    def decode(content: bytes, name: str) -> Manifest:
        """Read what `encode` wrote. Raises RmqdError with the name for anything else."""
        try:
            tree = json.loads(content)
            version = tree["version"]
            moves = tuple((str(source), str(target)) for source, target in tree["moves"])
            manifest = Manifest(str(tree["staged"]), moves, tuple(map(str, tree["replaced"])), int(tree["rows"]))
        except (ValueError, KeyError, TypeError) as error:
            raise RmqdError(f"{name} is no manifest of a batch: {error!r}") from error
        if version != _VERSION:
            raise RmqdError(
                f"{name} was written by another rmqd: its version is {version}, and {_VERSION} is known here"
            )
        return manifest


def manifest_name(batch: MicroBatch) -> str:
    """Of the file that decides about a batch; in order of the batches."""
    return f"{batch.number:09}-{batch.plan_id}.json"


def batch_of_manifest(name: str) -> int | None:
    """The number of the batch that a file of this name decides about; None for other files."""
    match = _MANIFEST.fullmatch(name)
    return int(match["batch"]) if match else None


def manifest_of(batch: MicroBatch, staged: str, files: Iterable[str], former: Iterable[str], rows: int) -> Manifest:
    """The manifest of a batch from the files that Spark wrote below `staged`; `former` are those of other attempts.

    `staged` ends in the attempt's name, which begins with the batch's number. Files have it in their names: a driver
    that was asleep and goes on to delete the files of former attempts meets none of a later attempt.

    Raises RmqdError for a file that is not named as Spark names them: one that is left out would be lost.
    """
    moves, attempt = [], staged.rpartition("/")[2]
    for path in files:
        parent, _, name = path.rpartition("/")
        if name.startswith(("_", ".")):
            continue
        match = _STAGED.fullmatch(name)
        if match is None:
            raise RmqdError(
                f"Spark wrote {path}, and files are expected to be named part-<number>-<id>.c<number>.parquet"
            )
        file = f"{batch.query}-{attempt}-{match['part']}-{match['file']}{match['ending']}"
        moves.append((path, f"{parent}/{file}" if parent else file))
    return Manifest(staged, tuple(moves), tuple(former), rows)


def query_and_batch(name: str) -> tuple[str, int] | None:
    """Which query's and batch's the file of a name in a folder is; None for a file that is not the sink's."""
    match = _PUBLISHED.fullmatch(name)
    return (match["query"], int(match["batch"])) if match else None


def files_since(batch: MicroBatch, files: Iterable[str]) -> list[str]:
    """Of all files in a folder those that this batch or a later one of its query has put there."""
    found = []
    for path in files:
        of = query_and_batch(path.rpartition("/")[2])
        if of is not None and of[0] == batch.query and of[1] >= batch.number:
            found.append(path)
    return found


@dataclass(frozen=True, slots=True)
class Layout:
    """How a folder's files are partitioned, and the columns that there were so far, with their SQL types."""

    partition_by: tuple[str, ...]
    columns: Mapping[str, str]

    def encode(self) -> bytes:
        """The layout as JSON."""
        return json.dumps({"partition_by": self.partition_by, "columns": dict(self.columns)}, indent=1).encode()

    @staticmethod
    def decode(content: bytes, name: str) -> Layout:
        """Read what `encode` wrote. Raises RmqdError with the name for anything else."""
        try:
            tree = json.loads(content)
            return Layout(tuple(tree["partition_by"]), {str(key): str(kind) for key, kind in tree["columns"].items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RmqdError(f"{name} does not tell a folder's columns: {error!r}") from error

    def problems(self) -> list[str]:
        """What is wrong with it in itself."""
        unknown = [name for name in self.partition_by if name not in self.columns]
        problems = [
            f"partition_by: there is no column {name}; the pipeline's are {', '.join(self.columns)}" for name in unknown
        ]
        if not set(self.columns) - set(self.partition_by):
            problems.append("partition_by: no column is left for the files; one that is no folder's is needed")
        return problems

    def problems_after(self, former: Layout) -> list[str]:
        """Why files of this layout cannot stand beside those of a former one. Columns may come and go."""
        problems = []
        if self.partition_by != former.partition_by:
            there, now = _listed(former.partition_by), _listed(self.partition_by)
            problems.append(f"partition_by: the folder is partitioned by {there}, and the group says {now}")
        for name, kind in self.columns.items():
            there = former.columns.get(name, kind)
            if there != kind:
                problems.append(f"column {name}: is {kind} now, and {there} in the folder; one reader cannot read both")
        return problems

    def with_former(self, former: Layout) -> Layout:
        """With the columns that were there and are no more, so that they don't come back as another type."""
        return Layout(self.partition_by, {**former.columns, **self.columns})


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
