"""`rmqd spark compact`: merges small files of a Parquet archive, while its group keeps writing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog

from rmqd.config.model.spark_model import SinkConfig
from rmqd.errors import ConfigError, RmqdError
from rmqd.spark.pipelines.compaction import Chunk, Compactions, chunks_of
from rmqd.spark.pipelines.parquet_sink import folders_of, use_microseconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqd.spark.session.group_spec import GroupSpec


log = structlog.get_logger(__name__)


def archive_to_compact(spec: GroupSpec) -> SinkConfig:
    """Return the archive of a group as a Parquet sink. Raises ConfigError for groups that write no Parquet files."""
    sink, handler = spec.settings.sink, spec.settings.handler
    if handler is not None and handler.plugin == "parquet":
        path, compression = str(handler.options["path"]), handler.options.get("compression", "zstd")
        is_bucket = path.startswith("s3://")  # Hadoop's name is s3a
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
    on_chunk: Callable[[Chunk], None] = lambda chunk: None,
) -> int:
    """Compact files that are small and old enough. Return the number of new files.

    `on_chunk` is called for each finished (or with `dry_run` proposed) compaction. Raises RmqdError; earlier
    compactions stay finished.
    """
    sink = archive_to_compact(spec)
    folder, staging = folders_of(session, sink)
    compactions = Compactions(folder, staging)
    if not dry_run:
        compactions.settle()
        compactions.forget_unplanned(round(time.time() * 1000))
        use_microseconds(session)
    before_ms = round((time.time() - older_seconds) * 1000)
    made = 0
    options = {name: str(value) for name, value in sink.options.items()}
    present = folder.facts()
    unsettled = compactions.unsettled()  # query after listing the files: a listed compaction not in here is finished
    for chunk in chunks_of(present, before_ms=before_ms, wanted_bytes=wanted_bytes, unsettled=unsettled):
        if dry_run:
            on_chunk(chunk)
            continue
        plan = compactions.compact(chunk, merge_by(session, folder.url, staging.url, chunk, options))
        if plan is not None:
            made += 1
            files, rows = len(chunk.names), plan.rows
            log.info("spark.archive_compacted", folder=folder.url, file=plan.target, files=files, rows=rows)
            on_chunk(chunk)
    return made


def merge_by(
    spark: SparkSession, folder: str, staging: str, chunk: Chunk, options: Mapping[str, str]
) -> Callable[[str], int]:
    """Return a function that writes the rows of a chunk to one file below the staging folder, and returns their number.

    It raises RmqdError, also if rows are missing in the new file.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    sources = [f"{folder}/{one}" for one in chunk.paths]

    def write(path: str) -> int:
        target = f"{staging}/{path}"
        try:
            frame = spark.read.option("mergeSchema", "true").parquet(*sources)  # files may have different columns
            one_file = frame.coalesce(1).write.format("parquet").option("maxRecordsPerFile", 0)
            one_file.mode("errorifexists").options(**options).save(target)
            rows, there = (spark.read.parquet(*urls).count() for urls in ([target], sources))
        except (PySparkException, Py4JError) as error:
            raise RmqdError(f"{folder}/{chunk.partition}: {str(error).partition(chr(10))[0]}") from error
        if rows != there:
            raise RmqdError(
                f"{folder}/{chunk.partition}: Spark wrote {rows} rows instead of {there}; the files were not replaced"
            )
        return rows

    return write
