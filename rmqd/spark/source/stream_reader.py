"""Streaming reads: `spark.readStream.format("rocketmq")`.

`read` runs on executors. Spark starts one Python process for each run of a query, and calls the other methods there:

    initialOffset (twice, only before the first batch of a new checkpoint),
    latestOffset(start) at every poll, idle or not; then, if the result differs from `start`: partitions, read, commit

Spark compares offsets by their text. `start` is the end of the last batch in the checkpoint. This batch is finished, so
`latestOffset` commits its end to the brokers. Spark calls `commit` one batch late, and never for the last batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import structlog
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from rmqd.errors import DataLossError, FilterRefusedError, RmqdError
from rmqd.spark.session.queue_queries import retry_until_timeout
from rmqd.spark.session.spark_cluster import SparkCluster, cluster_of
from rmqd.spark.session.spark_process import show_rmqd_errors_without_traceback
from rmqd.spark.source.group_offsets import GroupOffsetCommitter, SubscribedQueues, start_offsets_of
from rmqd.spark.source.range_fetch import check_sql_filter, partitions_of, ranges_of, read_partition
from rmqd.spark.source.source_offsets import OffsetBound, SourceOffsets
from rmqd.spark.source.source_options import SourceOptions
from rmqd.spark.source.source_progress import BrokerUnresponsiveError, QueueEnds, SourceProgress
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)


class MissingQueues:
    """The queues in the checkpoint whose broker or topic disappeared, or whose topic is no longer subscribed to.

    Their offsets are kept for `queueRetention`. If a queue returns, the query continues at its offset. The times when
    queues disappeared, in milliseconds since 1970, are also stored in the checkpoint, for the query's next run.
    """

    def __init__(self, retention_seconds: float) -> None:
        self._retention_ms = retention_seconds * 1000
        self._since: dict[MessageQueue, int] = {}
        self._ends: dict[MessageQueue, int] = {}
        self._retired = 0

    def update(self, begin: SourceOffsets, there: Set[MessageQueue], heads: Mapping[MessageQueue, int]) -> None:
        """Record and log queues of `begin` that are not in `there`, the existing queues. `heads` are end offsets."""
        self._ends |= heads
        for queue in sorted(begin.ends.keys() - there - self._since.keys()):
            self._since[queue] = begin.missing_since_ms.get(queue) or int(time.time() * 1000)
            log.warning(
                "spark.queue_gone", queue=str(queue), position=begin.ends[queue], unread=self._unread(begin, queue)
            )
        for queue in self._since.keys() & there:
            del self._since[queue]

    def with_missing(self, end: SourceOffsets) -> SourceOffsets:
        """Return `end` with the times of missing queues. Remove queues that are missing longer than the retention."""
        oldest = time.time() * 1000 - self._retention_ms
        late = {queue for queue, since in self._since.items() if since <= oldest}
        for queue in sorted(late & end.ends.keys()):
            self._retired += 1
            log.warning(
                "spark.queue_retired",
                queue=str(queue),
                position=end.ends[queue],
                unread=self._unread(end, queue),
                retired=self._retired,
            )
        return replace(
            end,
            ends={queue: offset for queue, offset in end.ends.items() if queue not in late},
            missing_since_ms={queue: since for queue, since in self._since.items() if queue not in late},
        )

    def _unread(self, offsets: SourceOffsets, queue: MessageQueue) -> int | None:
        """Return how many messages were unread when the queue last existed; None if it never did in this run."""
        end = self._ends.get(queue)
        return None if end is None else max(0, end - offsets.ends[queue])


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query. Executors unpickle it for `read`, which needs only its options."""

    _fails_by_silent_broker = True
    """Whether the query fails if one broker is silent for `unavailableToleranceMs`. A daemon's group does not fail."""
    _waits_for_ends = True
    """Whether a poll without new messages waits until the cached end offsets expire, and then queries the brokers.

    So a poll finds all messages that were sent before it, and `processAllAvailable` includes them.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._subscribed = SubscribedQueues(options)
        self._initial: dict[str, Any] | None = None
        self._heads = QueueEnds(options)
        self._progress = SourceProgress(options)
        self._group = GroupOffsetCommitter(options)
        self._missing = MissingQueues(options.queue_retention_seconds)
        self._silent_since: float | None = None
        self._checked: frozenset[MessageQueue] = frozenset()

    @show_rmqd_errors_without_traceback()
    def initialOffset(self) -> dict[str, Any]:
        """Return the start of the first batch. Spark calls this twice, and needs the same offsets each time."""
        if self._initial is None:
            start = retry_until_timeout(self._resolve_start, self._options.tolerance_seconds)
            self._heads.increase_pinned_ends(start.ends)
            self._initial = start.to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the `limit` for `latestOffset`. Spark accepts only one limit; `latestOffset` applies all options."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    @show_rmqd_errors_without_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        """Called before the start of a bounded query. Fix the queues' current end offsets, at which the query ends."""
        cluster = cluster_of(self._options.access)
        retry_until_timeout(
            lambda: self._heads.pin(cluster, self._subscribed.refreshed(cluster)), self._options.tolerance_seconds
        )

    @show_rmqd_errors_without_traceback()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Commit `start`, and return the end of the next batch; `start` itself if there is no batch."""
        begin = SourceOffsets.from_json(start)
        self._group.commit(begin.ends)
        if self._is_held():
            return start
        is_first = start == self._initial
        if self._heads.is_pinned:  # returning `start` after an error would end a bounded query with unread messages
            end = retry_until_timeout(
                lambda: self._advance(begin, limit, is_first=is_first), self._options.tolerance_seconds
            )
            return start if end is None else end.to_json()
        wait = self._heads.cache_seconds_left if self._waits_for_ends else 0.0
        try:
            end = self._advance(begin, limit, is_first=is_first)
            if end is None and wait:
                time.sleep(wait)
                end = None if self._is_held() else self._advance(begin, limit, is_first=is_first)
        except (DataLossError, FilterRefusedError, BrokerUnresponsiveError):
            raise
        except RmqdError as error:
            self._tolerate(error)
            return start
        return start if end is None else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the last known end offsets. Spark adds them to the query's progress, which then shows the lag."""
        return SourceOffsets(self._heads.last).to_json() if self._heads.last else None

    @show_rmqd_errors_without_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of the batch from `start` to `end`. A repeated batch has the same ranges."""
        cluster = cluster_of(self._options.access)
        spans = SourceOffsets.from_json(start).ranges(SourceOffsets.from_json(end))
        return partitions_of(self._options, ranges_of(cluster, self._options, spans))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Called when the next batch is planned. Usually `latestOffset` has already committed these offsets."""
        self._group.commit(SourceOffsets.from_json(end).ends)

    def _is_held(self) -> bool:
        return bool(self._options.pause_file) and Path(self._options.pause_file).exists()

    def _resolve_start(self) -> SourceOffsets:
        options = self._options
        cluster = cluster_of(options.access)
        queues = self._subscribed.refreshed(cluster)
        self._check_filter(cluster, queues)
        starts = start_offsets_of(cluster, options, OffsetBound("latest"), queues)
        # if the process ends before the start offsets are in the checkpoint, the next run reads them from the group
        self._group.commit_start_offsets(starts)
        return SourceOffsets(starts)

    def _advance(self, begin: SourceOffsets, limit: ReadLimit, *, is_first: bool) -> SourceOffsets | None:
        cluster = cluster_of(self._options.access)
        queues = self._subscribed.refreshed_if_due(cluster)
        self._check_filter(cluster, queues)
        heads = self._heads.current(cluster, queues)
        self._silent_since = None
        if self._fails_by_silent_broker:
            self._heads.silent.raise_if_unresponsive()
        # a bounded query would never end if it waited for a minimum of messages
        takes_all = isinstance(limit, ReadAllAvailable) or (self._heads.is_pinned and isinstance(limit, ReadMinRows))
        self._missing.update(begin, queues, heads)
        end = self._progress.next_end(cluster, begin, heads, takes_all=takes_all, is_bounded=self._heads.is_pinned)
        if end is None:
            return None
        end = self._missing.with_missing(end)
        # store the start of the first batch, because Spark does not; it would call `initialOffset` to repeat the batch
        return replace(end, new_queue_starts={**begin.ends, **end.new_queue_starts}) if is_first else end

    def _check_filter(self, cluster: SparkCluster, queues: frozenset[MessageQueue]) -> None:
        """Let the brokers of new queues check the option `sql`. Raises FilterRefusedError if a broker refuses it."""
        if queues - self._checked:
            check_sql_filter(cluster, self._options, queues - self._checked)
            self._checked |= queues

    def _tolerate(self, error: RmqdError) -> None:
        """Called when no broker answers. Raises `error` if that lasts for `unavailableToleranceMs`."""
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            log.warning("spark.brokers_unavailable", error=str(error), patience_seconds=self._options.tolerance_seconds)
        if now - self._silent_since >= self._options.tolerance_seconds:
            raise error
