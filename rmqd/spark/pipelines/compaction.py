"""Makes large files of a folder's small ones, beside a group that writes there, and killed at any moment.

The new file is written beside the folder, as a batch is, and then a plan is put there. From then on whoever comes by
carries it out: each of the small files is taken out of the folder, to the compaction's own; if all of them could be
had, the new file is moved in. That one rename decides. Where a file was gone, since another compaction has taken it,
the new file is renamed away for good, and what was taken is put back. A row is never in two files that readers see.

Several may be at one plan, each with what it has seen so far: one who believes that a plan still stands may take a
file that another one has just put back. So of a plan that was given up only the plan is deleted, never a folder with
what may have been taken; and what is found taken without a plan is put back. Of one that is done, what was taken goes
first and the plan last. A new file is compacted in its turn only when nothing is left of its own compaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from rmqd.errors import RmqdError
from rmqd.spark.pipelines.compacted_batches import CompactedBatches
from rmqd.spark.pipelines.compaction_plan import Chunk, CompactionPlan, batches_in, plan_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

COMPACTIONS: Final = ".compactions"
"""In the folder where batches are written first; no group has such a name."""
_PLAN: Final = "plan.json"
_BATCHES: Final = "batches"
_OLDER_NOTE: Final = "batches.json"
_WRITTEN: Final = "written"
_TAKEN: Final = "taken"
_GIVEN_UP: Final = "given_up"
_DONE: Final = "done"
_FORGOTTEN_MS: Final = 24 * 3600 * 1000


class Compactions:
    """The compactions of one folder. On a driver."""

    def __init__(self, folder: Any, staging: Any) -> None:
        """Both as `HadoopFolder`; tests have such without a JVM."""
        self._folder = folder
        self._staging = staging
        self._batches = CompactedBatches(staging, f"{COMPACTIONS}/{_BATCHES}")

    def compact(self, spark: SparkSession, chunk: Chunk, options: Mapping[str, str]) -> CompactionPlan | None:
        """Make one file of a chunk's. None where one of them was gone meanwhile. Raises RmqdError."""
        compaction = uuid.uuid4().hex
        ours = f"{COMPACTIONS}/{compaction}"
        rows = self._write(spark, chunk, f"{ours}/{_WRITTEN}", options)
        written = [path for path in self._staging.files(f"{ours}/{_WRITTEN}") if path.endswith(".parquet")]
        if len(written) != 1:
            where = f"{self._folder.url}/{chunk.partition}"
            raise RmqdError(f"{where}: Spark wrote {len(written)} files in place of one; nothing is changed")
        self._batches.add(batches_in(chunk.names))
        plan = plan_of(chunk, compaction, written[0].removeprefix(f"{ours}/"), rows)
        self._staging.put(f"{ours}/{_PLAN}", plan.encode())
        return plan if self._carry_out(plan, compaction) else None

    def settle(self) -> None:
        """Carry out what others have planned, which may be at it still, or were killed."""
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
                if self._staging.exists(name):  # else somebody else has just settled it
                    raise

    def forget_unplanned(self, now_ms: int) -> None:
        """Delete what is left of compactions that were killed before they had a plan, or given up, after a day.

        And of the note of batches what is of no use any more.

        Not earlier: one that still writes, or that another one is still at, may be about to take files.
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
        """The compactions of which something is left."""
        return frozenset(self._staging.names(COMPACTIONS)) - {_BATCHES}

    def last_batch(self, query: str) -> int:
        """Up to which batch a query's rows may be in a file with others'; -1 where they are in none."""
        return self._batches.last_batch(query)

    def _write(self, spark: SparkSession, chunk: Chunk, path: str, options: Mapping[str, str]) -> int:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        def read(urls: list[str]) -> int:
            return int(spark.read.parquet(*urls).count())

        target = f"{self._staging.url}/{path}"
        urls = [f"{self._folder.url}/{one}" for one in chunk.paths]
        try:
            frame = spark.read.option("mergeSchema", "true").parquet(*urls)  # columns may come and go
            one_file = frame.coalesce(1).write.format("parquet").option("maxRecordsPerFile", 0)
            one_file.mode("errorifexists").options(**options).save(target)
            rows, there = read([target]), read(urls)
        except (PySparkException, Py4JError) as error:
            raise RmqdError(f"{self._folder.url}/{chunk.partition}: {str(error).partition(chr(10))[0]}") from error
        if rows != there:
            where = f"{self._folder.url}/{chunk.partition}"
            raise RmqdError(f"{where}: of {there} rows {rows} were written; nothing is changed")
        return rows

    def _carry_out(self, plan: CompactionPlan, compaction: str) -> bool:
        """Do what is left to do, wherever somebody else is or was with it. Whether the new file is in the folder."""
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
        """Put into the folder what a compaction that was given up has taken out of it."""
        taken = f"{COMPACTIONS}/{compaction}/{_TAKEN}/"
        for path in self._staging.files(taken.removesuffix("/")):
            self._moved(path, self._folder, path.removeprefix(taken))

    def _take_all(self, plan: CompactionPlan, ours: str) -> bool:
        """Take the small files out of the folder. False where somebody else has one of them."""
        for path in plan.sources:
            if self._folder.exists(path):
                self._moved_from(path, ours)
            if not self._staging.exists(_taken(ours, path)):
                return not self._staging.exists(f"{ours}/{plan.written}")  # then another one has decided it
        return True

    def _moved_from(self, path: str, ours: str) -> None:
        try:
            self._folder.move(path, self._staging, _taken(ours, path))
        except RmqdError:
            if self._folder.exists(path):
                raise

    def _moved(self, path: str, target: Any, target_path: str) -> None:
        """Move a file of a compaction, unless somebody else has."""
        try:
            self._staging.move(path, target, target_path)
        except RmqdError:
            if self._staging.exists(path):
                raise


def _taken(ours: str, path: str) -> str:
    return f"{ours}/{_TAKEN}/{path}"
