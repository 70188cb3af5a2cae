"""The sink `parquet`: files that hold each row of a query exactly once, for whatever reads Parquet.

Spark's own sink tells readers in `_spark_metadata` which files count, and none but Spark looks there. Here a file that
is in the folder counts. A batch is written beside the folder, in `.NAME.rmqd` on the same file system; then its
manifest decides, and its files are moved. After a crash before the manifest the batch is written anew, and nobody has
seen anything of it; after a crash behind it the moves go on, whatever the query would say by now.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.errors import ConfigError, RmqdError
from rmqd.spark.hadoop_folder import HadoopFolder
from rmqd.spark.pipelines.compaction import Compactions
from rmqd.spark.pipelines.micro_batch import MicroBatch
from rmqd.spark.pipelines.parquet_batch import (
    Layout,
    Manifest,
    batch_of_manifest,
    files_since,
    manifest_name,
    manifest_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from rmqd.config.model.spark import SinkConfig

log = structlog.get_logger(__name__)

TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"
LAYOUT: Final = "layout.json"


class ParquetSink:
    """One group's way to a folder. For one query at a time, on the driver."""

    def __init__(
        self,
        folder: HadoopFolder,
        staging: HadoopFolder,
        writer: str,
        partition_by: tuple[str, ...] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        """`writer` tells those apart that write to one folder: a group's name. `options` are Spark's, of Parquet."""
        self._folder = folder
        self._staging = staging
        self._compactions = Compactions(folder, staging)
        self._writer = writer
        self._partition_by = partition_by
        self._options = dict(options or {})

    def prepare(self, schema: StructType) -> None:
        """Have the folders, and see that rows of this schema can go there.

        Raises ConfigError with all that is wrong, RmqdError where a folder cannot be had.
        """
        columns = {column.name: column.dataType.simpleString() for column in schema.fields}
        layout = Layout(self._partition_by, columns)
        if problems := layout.problems():
            raise ConfigError(list[object](problems))
        self._folder.make()
        self._staging.make(self._writer)
        self._see_one_file_system()
        self._compactions.settle()
        self._finish_what_was_left()
        if self._staging.exists(LAYOUT):
            former = Layout.decode(self._staging.read(LAYOUT), f"{self._staging.url}/{LAYOUT}")
            if problems := layout.problems_after(former):
                note = f"; accepted: another path, or {self._staging.url}/{LAYOUT} deleted if all readers know of both"
                raise ConfigError([f"{self._folder.url}: {problem}{note}" for problem in problems])
            layout = layout.with_former(former)
            if layout == former:
                return
        self._staging.put(LAYOUT, layout.encode())

    def write(self, frame: DataFrame, batch: MicroBatch) -> int:
        """Have a batch's rows in the folder, once however often it is repeated; how many they are.

        Raises RmqdError where another driver writes the batch too, and was first.
        """
        self._compactions.settle()
        ours = f"{self._writer}/{batch.query}"
        before = self._staging.names(ours)
        manifests = [name for name in before if batch_of_manifest(name) is not None]
        if manifest_name(batch) in manifests:
            manifest = self._read(f"{ours}/{manifest_name(batch)}")
            # it is written; yet what a stateful query keeps is only kept when its plan runs
            frame.write.format("noop").mode("overwrite").save()
        else:
            # nothing of it is there, unless somebody took the checkpoint back to a former batch
            went_back = any((batch_of_manifest(name) or 0) >= batch.number for name in manifests)
            former = self._take_back(batch, ours, manifests) if went_back else []
            manifest = self._stage(frame, batch, ours, former)
            self._decide(batch, manifest, f"{ours}/{manifest_name(batch)}", before)
        self._publish(manifest)
        self._staging.delete(manifest.staged)
        for name in before:  # what has come since is of a driver that took this one for dead
            if name != manifest_name(batch):
                self._staging.delete(f"{ours}/{name}")
        return manifest.rows

    def has(self, batch: MicroBatch) -> bool:
        """Whether a batch is written, so that its files are in the folder, or will be with the next `prepare`."""
        return self._staging.exists(f"{self._writer}/{batch.query}/{manifest_name(batch)}")

    def _finish_what_was_left(self) -> None:
        """Move what a killed driver has written and not moved, also of a query that will not come back."""
        for query in self._staging.names(self._writer):
            for name in self._staging.names(f"{self._writer}/{query}"):
                if batch_of_manifest(name) is not None:
                    manifest = self._read(f"{self._writer}/{query}/{name}")
                    if self._staging.exists(manifest.staged):
                        self._publish(manifest)
                        self._staging.delete(manifest.staged)

    def _take_back(self, batch: MicroBatch, ours: str, manifests: list[str]) -> list[str]:
        """See that nothing more comes of this batch's former plan and of what followed it; which files it has.

        Raises RmqdError where some of their rows are in a file with others.
        """
        if self._compactions.last_batch(batch.query) >= batch.number:
            raise RmqdError(
                f"batch {batch.number} of {self._writer} comes with other messages than before: its checkpoint was "
                f"taken back, and what it had written to {self._folder.url} since is compacted with other rows, and "
                "cannot be replaced; accepted: the checkpoint as it was, or another path"
            )
        for name in manifests:
            if (batch_of_manifest(name) or 0) >= batch.number:
                self._staging.delete(self._read(f"{ours}/{name}").staged)
        files = files_since(batch, self._folder.files())
        log.warning("spark.archive_taken_back", folder=self._folder.url, batch=batch.number, files_replaced=len(files))
        return files

    def _stage(self, frame: DataFrame, batch: MicroBatch, ours: str, former: list[str]) -> Manifest:
        """Write the batch where nobody looks."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import count, lit

        # a name of its own: what a killed driver's executors are still writing must not get into it
        staged = f"{ours}/{batch.number:09}-{uuid.uuid4().hex[:12]}"
        observation = Observation()
        use_microseconds(frame.sparkSession)
        writer = frame.observe(observation, count(lit(1)).alias("rows")).write.format("parquet").mode("errorifexists")
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.options(**self._options).save(f"{self._staging.url}/{staged}")
        rows = int(observation.get["rows"])
        files = self._staging.files(staged) if rows else []  # without rows Spark writes one file of none
        relative = [path.removeprefix(f"{staged}/") for path in files]
        return manifest_of(batch, staged, relative, former, rows)

    def _decide(self, batch: MicroBatch, manifest: Manifest, path: str, before: Sequence[str]) -> None:
        """Put the manifest, so that the batch counts. Raises RmqdError where another driver has decided it meanwhile.

        Where that one is at a later batch, it has deleted this batch's manifest: so later ones are looked for, too.
        """
        is_first = self._staging.put_new(path, manifest.encode())
        since = set(self._staging.names(path.rpartition("/")[0])).difference(before)
        later = [number for name in since if (number := batch_of_manifest(name)) is not None and number > batch.number]
        if is_first and later:
            self._staging.delete(path)
        if later or not is_first:
            self._staging.delete(manifest.staged)
            raise RmqdError(
                f"batch {batch.number} of {self._writer} was written to {self._folder.url} by another driver meanwhile"
            )

    def _publish(self, manifest: Manifest) -> None:
        """Move the files to where readers look; what was moved before is let be."""
        for path in manifest.replaced:
            self._folder.delete(path)
        waiting = set(self._staging.files(manifest.staged))
        for path, target in manifest.moves:
            if f"{manifest.staged}/{path}" in waiting:
                self._staging.move(f"{manifest.staged}/{path}", self._folder, target)
            elif not self._folder.exists(target):
                log.warning("spark.archived_file_gone", folder=self._folder.url, file=target)

    def _read(self, path: str) -> Manifest:
        return Manifest.decode(self._staging.read(path), f"{self._staging.url}/{path}")

    def _see_one_file_system(self) -> None:
        here, there = self._folder.local_path, self._staging.local_path
        if bool(here) != bool(there):
            raise ConfigError([f"{self._staging.url} is not on the file system of {self._folder.url}, to move files"])
        if here and os.path.isdir(here) and os.path.isdir(there) and os.stat(here).st_dev != os.stat(there).st_dev:
            raise ConfigError(
                [
                    f"{there}, where batches are written first, is on another disk than {here}, and files cannot be "
                    "moved between them at once; accepted: sink.staging on the disk of the folder"
                ]
            )


def use_microseconds(session: SparkSession) -> None:
    """Have a session write timestamps so that all readers know them, unless its group says otherwise."""
    if TIMESTAMPS not in session.conf.getAll:
        session.conf.set(TIMESTAMPS, "TIMESTAMP_MICROS")  # Spark's own are deprecated


def folders_of(spark: SparkSession, sink: SinkConfig) -> tuple[HadoopFolder, HadoopFolder]:
    """The folder of a sink, and the one where its batches are written first. Raises RmqdError."""
    folder = HadoopFolder(spark, sink.path)
    return folder, HadoopFolder(spark, sink.staging) if sink.staging else staging_beside(folder)


def staging_beside(folder: HadoopFolder) -> HadoopFolder:
    """Where batches are written first unless the group says it: beside the folder, as readers take all that is in it.

    Raises RmqdError for the top of a file system, which has nothing beside it.
    """
    if not folder.name:
        raise RmqdError(f"{folder.url} is the top of a file system; accepted: a folder below it, or sink.staging")
    return folder.sibling(f".{folder.name}.rmqd")
