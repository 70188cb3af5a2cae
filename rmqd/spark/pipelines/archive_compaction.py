"""`rmqd spark compact`: merges small files of a Parquet sink, while its group keeps writing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.config.model.spark_model import SinkConfig
from rmqd.errors import ConfigError
from rmqd.spark.pipelines.compaction import Compactions
from rmqd.spark.pipelines.parquet_batch import Chunk, chunks_of
from rmqd.spark.pipelines.parquet_sink import folders_of, use_microseconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqd.spark.session.group_spec import GroupSpec


log = structlog.get_logger(__name__)

COLUMNS: Final = ("PARTITION", "FILES", "BYTES")


def sink_to_compact(spec: GroupSpec) -> SinkConfig:
    """Return the Parquet sink of a group. Raises ConfigError for other groups."""
    sink = spec.settings.sink
    if sink is None or sink.format != "parquet":
        there = "no sink" if sink is None else f"a sink of format {sink.format}"
        raise ConfigError([f"group {spec.name} has {there}, and no files to compact; expected sink.format: parquet"])
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
    sink = sink_to_compact(spec)
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
        plan = compactions.compact(session, chunk, options)
        if plan is not None:
            made += 1
            files, rows = len(chunk.names), plan.rows
            log.info("spark.archive_compacted", folder=folder.url, file=plan.target, files=files, rows=rows)
            on_chunk(chunk)
    return made
