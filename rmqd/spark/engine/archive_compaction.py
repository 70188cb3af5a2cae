"""`rmqd spark compact`: large files of a Parquet sink's small ones, beside the group that writes there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.config.model.spark import SinkConfig
from rmqd.errors import ConfigError
from rmqd.spark.pipelines.compaction import Compactions
from rmqd.spark.pipelines.compaction_plan import Chunk, chunks_of
from rmqd.spark.pipelines.parquet_sink import folders_of, use_microseconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqd.spark.group_order import GroupOrder

log = structlog.get_logger(__name__)

COLUMNS: Final = ("PARTITION", "FILES", "BYTES")


def sink_to_compact(order: GroupOrder) -> SinkConfig:
    """The sink of a group that writes Parquet. Raises ConfigError for another one."""
    sink = order.settings.sink
    if sink is None or sink.format != "parquet":
        there = "no sink" if sink is None else f"a sink of format {sink.format}"
        raise ConfigError([f"group {order.name} has {there}, and no files to compact; accepted: format: parquet"])
    return sink


def compact_archive(
    session: SparkSession,
    order: GroupOrder,
    *,
    older_seconds: float,
    wanted_bytes: int,
    dry_run: bool = False,
    on_chunk: Callable[[Chunk], None] = lambda chunk: None,
) -> int:
    """Compact what is small and old enough; how many files were made. `on_chunk` is told what is done, or would be.

    Raises RmqdError; what is done by then is done.
    """
    sink = sink_to_compact(order)
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
    unsettled = compactions.unsettled()  # asked behind the files: whose files are there and who is not, is done
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
