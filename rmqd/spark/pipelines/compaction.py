"""The record of compacted batches: the last batch of each query with rows in a compacted file.

It is read after a checkpoint was reset, and written by compactions, possibly several at once. So an entry never
changes: each is an empty file whose name contains everything, and the highest entry of a query counts. A lower entry is
deleted when both are a day old, so that a concurrent listing of the folder cannot miss both.

Merges a folder's small files into large ones, while a group writes there. May be killed at any time.

The new file is written next to the folder, like a batch, and then a plan is stored there. From then on, every process
that finds the plan carries it out: it moves each small file out of the folder, into the compaction's own folder. If all
of them were available, the new file is moved in; that single rename commits the compaction. If another compaction had
already taken a file, the new file is renamed so that it is never used, and the small files are moved back. Readers
never see a row in two files.

Several processes may carry out the same plan, some with an outdated view. Such a process may take a file that another
process has just put back. So after an undone compaction only the plan is deleted, never the folder, which may contain
taken files; taken files without a plan are put back. After a successful one, the taken files are deleted first and the
plan last. A new file can be compacted again only when nothing remains of the compaction that wrote it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from rmqd.errors import RmqdError
from rmqd.spark.pipelines.parquet_batch import Chunk, CompactionPlan, batches_in, plan_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_NAME: Final = re.compile(r"(?P<query>[0-9a-f-]{36})-(?P<batch>[0-9]{9,})")
_KEPT_MS: Final = 24 * 3600 * 1000


class CompactedBatches:
    """The record, in a folder without other files. For use on a driver."""

    def __init__(self, staging: Any, path: str) -> None:
        """`staging` is a `HadoopFolder`; `path` is the record's folder below it."""
        self._staging = staging
        self._path = path

    def add(self, batches: Mapping[str, int]) -> None:
        """Record the last batches of queries. If this raises RmqdError, do not take any of their files."""
        for query, batch in batches.items():
            if self.last_batch(query) >= batch:
                continue
            path = f"{self._path}/{_name(query, batch)}"
            # an existing file says the same; replacing it would hide it for a moment on some stores
            if not self._staging.put_new(path, b"") and self.last_batch(query) < batch:
                raise RmqdError(
                    f"{self._staging.url}/{path}, which records compacted batches, could not be written, and nothing "
                    "was moved; repeat the command when the folder is writable"
                )

    def take_over(self, path: str) -> None:
        """Import the single file of an older rmqd, and delete it. Raises RmqdError if its content is invalid."""
        try:
            content = self._staging.read(path)
        except RmqdError:
            if self._staging.exists(path):  # if the file is gone, another process has just imported it
                raise
            return
        try:
            batches = {str(query): int(batch) for query, batch in json.loads(content).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise RmqdError(
                f"{self._staging.url}/{path} does not contain the compacted batches ({error!r}); restore the file, or "
                "delete it if no checkpoint will be reset"
            ) from error
        self.add(batches)
        self._staging.delete(path)

    def last_batch(self, query: str) -> int:
        """Return the last batch of a query with rows in a compacted file; -1 if there is none."""
        return max((batch for of, batch in self._noted(self._staging.names(self._path)) if of == query), default=-1)

    def forget_former(self, now_ms: int) -> None:
        """Delete outdated entries: of a query's day-old entries all but the highest."""
        before_ms = now_ms - _KEPT_MS
        facts = self._staging.facts(self._path)
        names = [path.rpartition("/")[2] for path, one in facts.items() if one.modified_ms < before_ms]
        last = dict(sorted(self._noted(names)))  # the highest entry of a query is last
        for query, batch in self._noted(names):
            if batch < last[query]:
                self._staging.delete(f"{self._path}/{_name(query, batch)}")

    @staticmethod
    def _noted(names: list[str]) -> Iterator[tuple[str, int]]:
        for name in names:
            if match := _NAME.fullmatch(name):
                yield match["query"], int(match["batch"])


def _name(query: str, batch: int) -> str:
    return f"{query}-{batch:09}"


log = structlog.get_logger(__name__)

COMPACTIONS: Final = ".compactions"
"""A name in the staging folder; not a valid group name."""
_PLAN: Final = "plan.json"
_BATCHES: Final = "batches"
_OLDER_NOTE: Final = "batches.json"
_WRITTEN: Final = "written"
_TAKEN: Final = "taken"
_GIVEN_UP: Final = "given_up"
_DONE: Final = "done"
_FORGOTTEN_MS: Final = 24 * 3600 * 1000


class Compactions:
    """The compactions of one folder, on a driver."""

    def __init__(self, folder: Any, staging: Any) -> None:
        """Both are a `HadoopFolder`; tests use folders without a JVM."""
        self._folder = folder
        self._staging = staging
        self._batches = CompactedBatches(staging, f"{COMPACTIONS}/{_BATCHES}")

    def compact(self, spark: SparkSession, chunk: Chunk, options: Mapping[str, str]) -> CompactionPlan | None:
        """Merge the files of a chunk. Return None if one of them disappeared meanwhile. Raises RmqdError."""
        compaction = uuid.uuid4().hex
        ours = f"{COMPACTIONS}/{compaction}"
        rows = self._write(spark, chunk, f"{ours}/{_WRITTEN}", options)
        written = [path for path in self._staging.files(f"{ours}/{_WRITTEN}") if path.endswith(".parquet")]
        if len(written) != 1:
            where = f"{self._folder.url}/{chunk.partition}"
            raise RmqdError(f"{where}: Spark wrote {len(written)} files instead of one; the files were not replaced")
        self._batches.add(batches_in(chunk.names))
        plan = plan_of(chunk, compaction, written[0].removeprefix(f"{ours}/"), rows)
        self._staging.put(f"{ours}/{_PLAN}", plan.encode())
        return plan if self._carry_out(plan, compaction) else None

    def settle(self) -> None:
        """Carry out the plans of all processes, which may still be running or were killed."""
        for compaction in self._staging.names(COMPACTIONS):
            if compaction == _BATCHES:
                continue
            if compaction == _OLDER_NOTE:
                self._batches.take_over(f"{COMPACTIONS}/{_OLDER_NOTE}")
                continue
            name = f"{COMPACTIONS}/{compaction}/{_PLAN}"
            if not self._staging.exists(name):
                self._put_back(compaction)
                continue
            try:
                plan = CompactionPlan.decode(self._staging.read(name), f"{self._staging.url}/{name}")
                self._carry_out(plan, compaction)
            except RmqdError:
                if self._staging.exists(name):  # if the plan is gone, another process has just settled it
                    raise

    def forget_unplanned(self, now_ms: int) -> None:
        """Delete files of compactions that were killed before they had a plan, or were undone.

        Also delete outdated records of batches. Files younger than a day stay, because the process that wrote them may
        still be running.
        """
        for compaction in self._staging.names(COMPACTIONS):
            ours = f"{COMPACTIONS}/{compaction}"
            if compaction == _BATCHES or self._staging.exists(f"{ours}/{_PLAN}"):
                continue
            facts = self._staging.facts(ours)
            has_taken = any(path.startswith(f"{ours}/{_TAKEN}/") for path in facts)
            is_old = all(one.modified_ms < now_ms - _FORGOTTEN_MS for one in facts.values())
            if facts and is_old and not has_taken:
                self._staging.delete(ours)
        self._batches.forget_former(now_ms)

    def unsettled(self) -> frozenset[str]:
        """Return the compactions that left files."""
        return frozenset(self._staging.names(COMPACTIONS)) - {_BATCHES}

    def last_batch(self, query: str) -> int:
        """Return the last batch of a query with rows in a compacted file; -1 if there is none."""
        return self._batches.last_batch(query)

    def _write(self, spark: SparkSession, chunk: Chunk, path: str, options: Mapping[str, str]) -> int:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        def read(urls: list[str]) -> int:
            return int(spark.read.parquet(*urls).count())

        target = f"{self._staging.url}/{path}"
        urls = [f"{self._folder.url}/{one}" for one in chunk.paths]
        try:
            frame = spark.read.option("mergeSchema", "true").parquet(*urls)  # files may have different columns
            one_file = frame.coalesce(1).write.format("parquet").option("maxRecordsPerFile", 0)
            one_file.mode("errorifexists").options(**options).save(target)
            rows, there = read([target]), read(urls)
        except (PySparkException, Py4JError) as error:
            raise RmqdError(f"{self._folder.url}/{chunk.partition}: {str(error).partition(chr(10))[0]}") from error
        if rows != there:
            where = f"{self._folder.url}/{chunk.partition}"
            raise RmqdError(f"{where}: Spark wrote {rows} rows instead of {there}; the files were not replaced")
        return rows

    def _carry_out(self, plan: CompactionPlan, compaction: str) -> bool:
        """Finish a compaction, even if other processes work on it. Return whether the new file is in the folder."""
        ours = f"{COMPACTIONS}/{compaction}"
        is_done = self._staging.exists(f"{ours}/{_DONE}")
        if not is_done and self._staging.exists(f"{ours}/{plan.written}"):
            if self._take_all(plan, ours):
                self._moved(f"{ours}/{plan.written}", self._folder, plan.target)
            else:
                self._moved(f"{ours}/{plan.written}", self._staging, f"{ours}/{_GIVEN_UP}")
        if is_done or self._folder.exists(plan.target):
            self._staging.put(f"{ours}/{_DONE}", b"")
            self._staging.delete(f"{ours}/{_TAKEN}")
            self._staging.delete(ours)
            return True
        self._put_back(compaction)
        log.warning("spark.compaction_undone", folder=self._folder.url, file=plan.target, files=len(plan.sources))
        self._staging.delete(f"{ours}/{_PLAN}")
        return False

    def _put_back(self, compaction: str) -> None:
        """Move the files that an undone compaction took back into the folder."""
        taken = f"{COMPACTIONS}/{compaction}/{_TAKEN}/"
        for path in self._staging.files(taken.removesuffix("/")):
            self._moved(path, self._folder, path.removeprefix(taken))

    def _take_all(self, plan: CompactionPlan, ours: str) -> bool:
        """Move the small files out of the folder. Return False if another compaction has one of them."""
        for path in plan.sources:
            if self._folder.exists(path):
                self._moved_from(path, ours)
            if not self._staging.exists(_taken(ours, path)):
                return not self._staging.exists(f"{ours}/{plan.written}")  # if False, another process has decided
        return True

    def _moved_from(self, path: str, ours: str) -> None:
        try:
            self._folder.move(path, self._staging, _taken(ours, path))
        except RmqdError:
            if self._folder.exists(path):
                raise

    def _moved(self, path: str, target: Any, target_path: str) -> None:
        """Move a file of a compaction, unless another process has moved it."""
        try:
            self._staging.move(path, target, target_path)
        except RmqdError:
            if self._staging.exists(path):
                raise


def _taken(ours: str, path: str) -> str:
    return f"{ours}/{_TAKEN}/{path}"
