"""The sink `parquet`: a folder of files that contain each row of a query exactly once, for any reader of Parquet.

Spark's own Parquet sink lists the valid files in `_spark_metadata`, which only Spark reads. With this sink, each file
in the folder is valid. A micro-batch is first written to the staging folder, `.NAME.rmqd` next to the output folder by
default. Then a manifest commits the batch, and the files are moved to the output folder. If the driver crashes before
the manifest is written, the batch is written again, and readers have not seen its files. If the driver crashes later,
the next driver finishes the moves, even if the query would now return other rows.

`compact_archive` (`rmqd spark compact`) merges small files of the output folder, while the group keeps writing.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from pyspark.sql import Observation
from pyspark.sql.functions import count, lit

from rmqd.config.model.spark_model import SinkConfig
from rmqd.errors import ConfigError, RmqdError
from rmqd.handler_api.destinations.archive_manifest import (
    FORMAT,
    BatchManifest,
    Layout,
    decode,
    encode,
    parse_sink_file_name,
)
from rmqd.spark.pipelines.compaction import CompactionChunk, Compactions, chunks_to_compact
from rmqd.spark.pipelines.pipeline_counts import MicroBatch
from rmqd.spark.session.hadoop_folder import HadoopFolder, java_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from rmqd.spark.session.group_spec import GroupSpec

T = TypeVar("T")
log = structlog.get_logger(__name__)

TIMESTAMP_TYPE_CONF: Final = "spark.sql.parquet.outputTimestampType"
LAYOUT_FILE: Final = "layout.json"
# Spark names files part-00003-<uuid of the job>.c000.snappy.parquet, or with -c000 without partitions
_STAGED: Final = re.compile(r"part-(?P<part>[0-9]+)-[0-9a-f-]{36}[.-]c(?P<file>[0-9]+)(?P<ending>\..*)")
_MANIFEST: Final = re.compile(r"(?P<batch>[0-9]{9,})-[0-9a-f]{12}\.json")


def manifest_name(batch: MicroBatch) -> str:
    """Return the file name of a batch's manifest. The names sort by batch number."""
    return f"{batch.number:09}-{batch.offset_log_id}.json"


def batch_of_manifest(name: str) -> int | None:
    match = _MANIFEST.fullmatch(name)
    return int(match["batch"]) if match else None


def make_manifest(
    batch: MicroBatch, staged: str, files: Iterable[str], former: Iterable[str], rows: int
) -> BatchManifest:
    """Return the manifest of a batch. Spark wrote `files` below `staged`; the batch replaces the files `former`.

    `staged` ends with the unique name of this write attempt, which starts with the batch number. The names of output
    files contain this name. So a driver that resumes late and deletes files of earlier attempts cannot delete files of
    later attempts. Raises RmqdError for a file that is not named like Spark's files, because skipping it would lose
    rows.
    """
    moves, attempt = [], staged.rpartition("/")[2]
    for path in files:
        parent, slash, name = path.rpartition("/")
        if name.startswith(("_", ".")):
            continue
        match = _STAGED.fullmatch(name)
        if match is None:
            raise RmqdError(f"Spark wrote {path}; expected a name like part-<number>-<id>.c<number>.parquet")
        file = f"{batch.query_id}-{attempt}-{match['part']}-{match['file']}{match['ending']}"
        moves.append((path, f"{parent}{slash}{file}"))
    return BatchManifest(version=FORMAT, staged=staged, moves=tuple(moves), replaced=tuple(former), rows=rows)


def files_of_batches_since(batch: MicroBatch, files: Iterable[str]) -> list[str]:
    """Return the output files of this batch and of later batches of the same query."""
    found = ((path, parse_sink_file_name(path)) for path in files)
    return [path for path, of in found if of is not None and of[0] == batch.query_id and of[1] >= batch.number]


class ParquetSink:
    """The output folder and the staging folder of one group. Used on the driver, by one query at a time."""

    def __init__(
        self,
        folder: HadoopFolder,
        staging: HadoopFolder,
        writer: str,
        partition_by: tuple[str, ...] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        """`writer` is the group's name, because several groups may share a folder. `options` are for Spark's writer."""
        self._folder = folder
        self._staging = staging
        self._compactions = Compactions(folder, staging)
        self._writer = writer
        self._partition_by = partition_by
        self._options = dict(options or {})

    def prepare(self, schema: StructType) -> None:
        """Create the folders, finish the moves of killed drivers, and check that the rows fit the folder's layout.

        Raises ConfigError with all problems, and RmqdError if a folder is unavailable.
        """
        columns = {column.name: column.dataType.simpleString() for column in schema.fields}
        layout = Layout(self._partition_by, columns)
        if problems := layout.problems():
            raise ConfigError(list[object](problems))
        self._folder.make()
        self._staging.make(self._writer)
        self._see_one_file_system()
        self._compactions.finish_all()
        self._finish_what_was_left()
        if self._staging.exists(LAYOUT_FILE):
            former = self._read(Layout, LAYOUT_FILE)
            if problems := layout.problems_after(former):
                note = (
                    f"; use another path, or delete {self._staging.url}/{LAYOUT_FILE} if readers can read both layouts"
                )
                raise ConfigError([f"{self._folder.url}: {problem}{note}" for problem in problems])
            layout = layout.with_former(former)
            if layout == former:
                return
        self._staging.put(LAYOUT_FILE, encode(layout))

    def write(self, frame: DataFrame, batch: MicroBatch) -> int:
        """Write the rows of a batch, exactly once even if the batch is repeated. Return the number of rows.

        Raises RmqdError if another driver has written the batch meanwhile.
        """
        self._compactions.finish_all()
        ours = f"{self._writer}/{batch.query_id}"
        before = self._staging.names(ours)
        manifests = [name for name in before if batch_of_manifest(name) is not None]
        if manifest_name(batch) in manifests:
            manifest = self._read(BatchManifest, f"{ours}/{manifest_name(batch)}")
            # execute the plan of a committed batch too, because only this updates the state of a stateful query
            frame.write.format("noop").mode("overwrite").save()
        else:
            # the output folder has files of this batch only if the checkpoint was reset to an earlier batch
            went_back = any((batch_of_manifest(name) or 0) >= batch.number for name in manifests)
            former = self._take_back(batch, ours, manifests) if went_back else []
            manifest = self._stage(frame, batch, ours, former)
            self._decide(batch, manifest, f"{ours}/{manifest_name(batch)}", before)
        self._publish(manifest)
        self._staging.delete(manifest.staged)
        for name in before:  # files that are not in `before` belong to a newer driver
            if name != manifest_name(batch):
                self._staging.delete(f"{ours}/{name}")
        return manifest.rows

    def has_batch(self, batch: MicroBatch) -> bool:
        """Return whether a batch is committed. Its files are in the output folder, or the next `prepare` moves them."""
        return self._staging.exists(f"{self._writer}/{batch.query_id}/{manifest_name(batch)}")

    def _finish_what_was_left(self) -> None:
        """Move the files of committed batches that killed drivers did not move, even if their query never restarts."""
        for query in self._staging.names(self._writer):
            for name in self._staging.names(f"{self._writer}/{query}"):
                if batch_of_manifest(name) is not None:
                    manifest = self._read(BatchManifest, f"{self._writer}/{query}/{name}")
                    if self._staging.exists(manifest.staged):
                        self._publish(manifest)
                        self._staging.delete(manifest.staged)

    def _take_back(self, batch: MicroBatch, ours: str, manifests: list[str]) -> list[str]:
        """Delete the staged files of this batch's previous plan and of all later batches.

        Return the output files of these batches. Raises RmqdError if a compaction merged their rows with other rows.
        """
        if self._compactions.batches.last_batch(batch.query_id) >= batch.number:
            raise RmqdError(
                f"batch {batch.number} of {self._writer} has different messages than before, because its checkpoint "
                f"was reset. Its rows in {self._folder.url} cannot be replaced, because they were compacted together "
                "with other rows; restore the checkpoint, or use another path"
            )
        for name in manifests:
            if (batch_of_manifest(name) or 0) >= batch.number:
                self._staging.delete(self._read(BatchManifest, f"{ours}/{name}").staged)
        files = files_of_batches_since(batch, self._folder.files())
        log.warning("spark.archive_taken_back", folder=self._folder.url, batch=batch.number, files_replaced=len(files))
        return files

    def _stage(self, frame: DataFrame, batch: MicroBatch, ours: str, former: list[str]) -> BatchManifest:
        # a unique folder name, so that the executors of a killed driver cannot add files to the folder
        staged = f"{ours}/{batch.number:09}-{uuid.uuid4().hex[:12]}"
        observation = Observation()
        use_microsecond_timestamps(frame.sparkSession)
        writer = frame.observe(observation, count(lit(1)).alias("rows")).write.format("parquet").mode("errorifexists")
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.options(**self._options).save(f"{self._staging.url}/{staged}")
        rows = int(observation.get["rows"])
        files = self._staging.files(staged) if rows else []  # without rows Spark writes one empty file
        relative = [path.removeprefix(f"{staged}/") for path in files]
        return make_manifest(batch, staged, relative, former, rows)

    def _decide(self, batch: MicroBatch, manifest: BatchManifest, path: str, before: Sequence[str]) -> None:
        """Write the manifest, which commits the batch. Raises RmqdError if another driver has committed the batch.

        The manifest of a later batch also proves this, because a driver that writes a later batch deletes this batch's
        manifest.
        """
        is_first = self._staging.put_new(path, encode(manifest))
        since = set(self._staging.names(path.rpartition("/")[0])).difference(before)
        later = [number for name in since if (number := batch_of_manifest(name)) is not None and number > batch.number]
        if is_first and later:
            self._staging.delete(path)
        if later or not is_first:
            self._staging.delete(manifest.staged)
            raise RmqdError(
                f"batch {batch.number} of {self._writer} was written to {self._folder.url} by another driver meanwhile"
            )

    def _publish(self, manifest: BatchManifest) -> None:
        """Move the files of a committed batch to the output folder. Skip files that are already there."""
        for path in manifest.replaced:
            self._folder.delete(path)
        waiting = set(self._staging.files(manifest.staged))
        for path, target in manifest.moves:
            if f"{manifest.staged}/{path}" in waiting:
                self._staging.move(f"{manifest.staged}/{path}", self._folder, target)
            elif not self._folder.exists(target):
                log.warning("spark.archived_file_gone", folder=self._folder.url, file=target)

    def _read(self, kind: type[T], path: str) -> T:
        return decode(kind, self._staging.read(path), f"{self._staging.url}/{path}")

    def _see_one_file_system(self) -> None:
        here, there = self._folder.local_path, self._staging.local_path
        if bool(here) != bool(there):
            raise ConfigError([f"{self._staging.url} and {self._folder.url} must be on the same file system"])
        if here and os.path.isdir(here) and os.path.isdir(there) and os.stat(here).st_dev != os.stat(there).st_dev:
            raise ConfigError(
                [
                    f"{there}, where batches are written first, is on another disk than {here}, so files cannot be "
                    "moved atomically; set sink.staging to a folder on the same disk"
                ]
            )


def use_microsecond_timestamps(session: SparkSession) -> None:
    """Make a session write timestamps as TIMESTAMP_MICROS, unless its configuration sets another type."""
    if TIMESTAMP_TYPE_CONF not in session.conf.getAll:
        session.conf.set(TIMESTAMP_TYPE_CONF, "TIMESTAMP_MICROS")  # Spark's default type is deprecated


def output_and_staging(spark: SparkSession, sink: SinkConfig) -> tuple[HadoopFolder, HadoopFolder]:
    folder = HadoopFolder(spark, sink.path)
    return folder, HadoopFolder(spark, sink.staging) if sink.staging else default_staging_folder(folder)


def default_staging_folder(folder: HadoopFolder) -> HadoopFolder:
    """Return the default staging folder. It is not in the output folder, because readers read all files there.

    Raises RmqdError if the output folder is the root of a file system.
    """
    if not folder.name:
        raise RmqdError(f"{folder.url} is the top of a file system; use a folder below it, or set sink.staging")
    return folder.sibling(f".{folder.name}.rmqd")


def sink_to_compact(spec: GroupSpec) -> SinkConfig:
    """Return a group's sink `parquet`, or an equivalent of its handler `parquet`. Raises ConfigError without either."""
    sink, handler = spec.settings.sink, spec.settings.handler
    if handler is not None and handler.plugin == "parquet":
        path, compression = str(handler.options["path"]), handler.options.get("compression", "zstd")
        is_bucket = path.startswith("s3://")  # Hadoop's scheme for S3 is s3a
        return SinkConfig(
            format="parquet",
            path=f"s3a://{path[5:]}" if is_bucket else os.path.abspath(path),
            options={"compression": compression},
        )
    if sink is None or sink.format != "parquet":
        there = "no sink" if sink is None else f"a sink of format {sink.format}"
        raise ConfigError([
            f"group {spec.name} has {there}, and no files to compact; expected sink.format: parquet, or "
            "handler.plugin: parquet"
        ])  # fmt: skip
    return sink


def compact_archive(
    session: SparkSession,
    spec: GroupSpec,
    *,
    older_seconds: float,
    wanted_bytes: int,
    dry_run: bool = False,
    on_chunk: Callable[[CompactionChunk], None] = lambda chunk: None,
) -> int:
    """Merge a group's Parquet files that are small and older than `older_seconds`. Return the number of new files.

    `wanted_bytes` is the target size of a new file. `on_chunk` is called for each finished compaction, or with
    `dry_run` for each proposed compaction. Raises RmqdError; compactions before the error stay finished.
    """
    sink = sink_to_compact(spec)
    folder, staging = output_and_staging(session, sink)
    compactions = Compactions(folder, staging)
    if not dry_run:
        compactions.finish_all()
        compactions.delete_unplanned_files(round(time.time() * 1000))
        use_microsecond_timestamps(session)
    before_ms = round((time.time() - older_seconds) * 1000)
    made = 0
    options = {name: str(value) for name, value in sink.options.items()}
    present = folder.file_facts()
    unsettled = compactions.unfinished()  # read after the files, so that every other compaction has finished
    for chunk in chunks_to_compact(present, before_ms=before_ms, wanted_bytes=wanted_bytes, unfinished=unsettled):
        if dry_run:
            on_chunk(chunk)
            continue
        plan = compactions.compact(chunk, file_merger(session, folder.url, staging.url, chunk, options))
        if plan is not None:
            made += 1
            files, rows = len(chunk.names), plan.rows
            log.info("spark.archive_compacted", folder=folder.url, file=plan.target, files=files, rows=rows)
            on_chunk(chunk)
    return made


def file_merger(
    spark: SparkSession, folder: str, staging: str, chunk: CompactionChunk, options: Mapping[str, str]
) -> Callable[[str], int]:
    """Return a function that merges the files of a chunk into one file, and returns the number of rows.

    The function takes a path below the staging folder. It raises RmqdError, for example if the new file lacks rows.
    """
    sources = [f"{folder}/{one}" for one in chunk.paths]

    def write(path: str) -> int:
        target = f"{staging}/{path}"
        with java_errors(f"{folder}/{chunk.partition}"):
            frame = spark.read.option("mergeSchema", "true").parquet(*sources)  # files may have different columns
            one_file = frame.coalesce(1).write.format("parquet").option("maxRecordsPerFile", 0)
            one_file.mode("errorifexists").options(**options).save(target)
            rows, there = (spark.read.parquet(*urls).count() for urls in ([target], sources))
        if rows != there:
            raise RmqdError(
                f"{folder}/{chunk.partition}: Spark wrote {rows} rows instead of {there}; the files were not replaced"
            )
        return rows

    return write
