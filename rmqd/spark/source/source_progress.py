"""The progress of a query: the end offsets of its queues, the end of its next batch, and its lag.

If some brokers do not answer, the query continues without their queues.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from rmqd.errors import DataLossError, RemotingError, RmqdError
from rmqd.runtime.plain_text import duration
from rmqd.spark.session.queue_queries import QueueResponses
from rmqd.spark.session.spark_cluster import SparkCluster, values_or_raise
from rmqd.spark.source.source_offsets import SourceOffsets, parse_reported_offsets
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmqd.spark.source.source_options import SourceOptions


def share_messages(backlog: Mapping[MessageQueue, int], max_messages: int) -> dict[MessageQueue, int]:
    """Return how many messages of each queue to read in a batch of `max_messages`, in proportion to its backlog.

    Each queue with a backlog contributes at least one message, so that no queue starves. The sum is `max_messages`, or
    the whole backlog if that is less. The sum is higher if more than `max_messages` queues have a backlog.
    """
    waiting = {queue: count for queue, count in sorted(backlog.items()) if count > 0}
    total = sum(waiting.values())
    if total <= max_messages:
        return waiting
    taken = {queue: max(1, count * max_messages // total) for queue, count in waiting.items()}
    rest = max_messages - sum(taken.values())
    # rounding, and the minimum of 1, change the sum: correct it in the largest queues
    for queue in sorted(waiting, key=lambda queue: (-waiting[queue], queue)):
        if rest == 0:
            break
        change = min(rest, waiting[queue] - taken[queue]) if rest > 0 else -min(-rest, taken[queue] - 1)
        taken[queue] += change
        rest -= change
    return taken


def share_messages_by_bytes(
    backlog: Mapping[MessageQueue, int], sizes: Mapping[MessageQueue, float], max_bytes: int
) -> dict[MessageQueue, int]:
    """Return how many messages of each queue to read in a batch of `max_bytes`. `sizes` are mean sizes in bytes."""
    waiting = {queue: count for queue, count in sorted(backlog.items()) if count > 0}
    total = sum(count * sizes[queue] for queue, count in waiting.items())
    if total <= max_bytes:
        return waiting
    return {queue: max(1, int(count * max_bytes / total)) for queue, count in waiting.items()}


log = structlog.get_logger(__name__)

T = TypeVar("T")

RECREATION_CHECK_SECONDS: Final = 60.0  # how often to check for recreated topics
UNKNOWN_SIZE_BYTES: Final = 1024.0  # assumed message size until a broker returns the queue's mean message size


class BrokerUnresponsiveError(RemotingError):
    """A broker returned no end offsets of its queues for `unavailableToleranceMs`, while other brokers did."""


@dataclass(slots=True)
class _UnresponsiveBroker:
    since: float
    error: RmqdError
    pending: Future[QueueResponses[int]] | None = None

    def take_answers(self, cluster: SparkCluster, queues: Collection[MessageQueue]) -> QueueResponses[int]:
        """Return the answers of the request in flight, if it is done. Start a request if none is in flight."""
        if self.pending is None:
            self.pending = cluster.begin_max_offsets(queues)
        elif self.pending.done():
            answers, self.pending = self.pending.result(), None
            return answers
        return QueueResponses()


class UnresponsiveBrokers:
    """The brokers that do not answer. Logs when a broker stops answering, and when it answers again."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._silent: dict[str, _UnresponsiveBroker] = {}

    def end_offsets(self, cluster: SparkCluster, queues: Collection[MessageQueue]) -> QueueResponses[int]:
        """Return the end offsets of the queues.

        Do not wait for brokers that did not answer before, because their requests take seconds to fail and would delay
        all other queues. If such a broker answers, a later call returns its end offsets.
        """
        answers = cluster.max_offsets([one for one in queues if one.broker_name not in self._silent], of_slaves=True)
        for broker, silence in self._silent.items():
            asked = [queue for queue in queues if queue.broker_name == broker]
            late = silence.take_answers(cluster, asked)
            for queue in asked:  # the answers belong to an earlier request, which may have named other queues
                if queue in late.values:
                    answers.values[queue] = late.values[queue]
                else:
                    answers.errors[queue] = late.errors.get(queue, silence.error)
        return answers

    def record_failures(self, answers: QueueResponses[int]) -> None:
        """Record the brokers that did not answer. Errors about a missing route or master do not count."""
        failed: dict[str, list[MessageQueue]] = {}
        for queue in sorted(answers.errors.keys() - answers.missing_queues):
            failed.setdefault(queue.broker_name, []).append(queue)
        there = {queue.broker_name for queue in answers.values}
        now = time.monotonic()
        for broker in sorted(self._silent.keys() - failed.keys()):
            silence = self._silent.pop(broker)
            if broker in there:  # otherwise the broker has not answered, but disappeared from the routes
                log.info("spark.broker_returned", broker=broker, after_seconds=round(now - silence.since, 1))
        for broker, queues in sorted(failed.items()):
            error = answers.errors[queues[0]]
            if broker in self._silent:
                self._silent[broker].error = error
                continue
            self._silent[broker] = _UnresponsiveBroker(now, error)
            topics = dict.fromkeys(queue.topic for queue in queues)
            log.warning(
                "spark.broker_silent",
                broker=broker,
                queues={topic: [queue.queue_id for queue in queues if queue.topic == topic] for topic in topics},
                error=str(error),
                patience_seconds=self._patience_seconds,
            )

    def raise_if_unresponsive(self) -> None:
        """Raise BrokerUnresponsiveError if a broker has not answered for `patience_seconds`."""
        now = time.monotonic()
        for broker, silence in self._silent.items():
            seconds = now - silence.since
            if seconds >= self._patience_seconds:
                raise BrokerUnresponsiveError(
                    broker,
                    f"has not returned the ends of its queues for {duration(seconds)} while others did: "
                    f"{silence.error}",
                )


class QueueEnds:
    """The end offsets of the queues, cached for `fetchOffset.intervalMs`, because Spark polls 90 times a second."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._asked_at: float | None = None
        self._pinned: dict[MessageQueue, int] | None = None
        self.silent = UnresponsiveBrokers(options.tolerance_seconds)
        self.last: dict[MessageQueue, int] = {}
        """The end offsets that the brokers last returned."""

    @property
    def is_pinned(self) -> bool:
        """Whether the end offsets are fixed, because the query is bounded (`Trigger.AvailableNow`)."""
        return self._pinned is not None

    @property
    def cache_seconds_left(self) -> float:
        """How many seconds `current` still returns the cached end offsets; 0 if it would query the brokers."""
        if self._asked_at is None:
            return 0.0
        return max(0.0, self._asked_at + self._options.fetch_interval_seconds - time.monotonic())

    def pin(self, cluster: SparkCluster, queues: Iterable[MessageQueue]) -> None:
        """Fix the end offsets at their current values, for a bounded query. Raises RmqdError if a master fails.

        Slaves are not asked, because a slave may be behind its master, and the query would end too early.
        """
        self._pinned = values_or_raise(cluster.max_offsets(queues))
        self.last = dict(self._pinned)

    def increase_pinned_ends(self, start_offsets: Mapping[MessageQueue, int]) -> None:
        """Increase fixed end offsets to at least the start offsets. A lower end could be reported as data loss."""
        if self._pinned is not None:
            self._pinned |= {queue: max(self._pinned.get(queue, at), at) for queue, at in start_offsets.items()}

    def current(self, cluster: SparkCluster, queues: Collection[MessageQueue]) -> Mapping[MessageQueue, int]:
        """Return the end offsets of the queues whose brokers answered. Raises RmqdError if no broker answered."""
        if self._pinned is not None:
            return self._pinned
        if self.cache_seconds_left:
            return self.last
        now = time.monotonic()
        answers = self.silent.end_offsets(cluster, queues)
        if answers.errors and not answers.values:
            values_or_raise(answers)
        self.silent.record_failures(answers)
        self._asked_at = now
        self.last = answers.values
        return self.last


class SourceProgress:
    """Computes the end of each batch from its start and the end offsets of the queues."""

    def __init__(self, options: SourceOptions) -> None:
        self.max_offsets = options.max_offsets
        """Maximum number of messages in the next batch."""
        self._options = options
        self._sizes: dict[MessageQueue, float] = {}
        self._last_batch_at = time.monotonic()
        self._is_first = True
        self._mark_at = 0.0

    def next_end(
        self,
        cluster: SparkCluster,
        begin: SourceOffsets,
        queue_ends: Mapping[MessageQueue, int],
        *,
        takes_all: bool,
        is_bounded: bool,
    ) -> SourceOffsets | None:
        """Return the end of the next batch, which starts at `begin`; None if it would be empty. Raises RmqdError.

        With `takes_all`, the size limits of a batch are ignored. Queues whose broker does not answer wait for a later
        batch. If `is_bounded`, the broker's error is raised instead, because an empty batch ends a bounded query.
        """
        new = {queue: head for queue, head in queue_ends.items() if queue not in begin.ends}
        starts = self._starts(cluster, new, by_all=is_bounded) if new else {}
        backlog = {}
        for queue, head in queue_ends.items():
            low = begin.ends.get(queue, starts.get(queue))
            if low is not None:
                backlog[queue] = head - low
        back = self._back(cluster, begin, [queue for queue, count in backlog.items() if count < 0], by_all=is_bounded)
        patient = not takes_all and self._options.min_offsets is not None
        is_enough = self._is_enough(backlog) if patient else any(count > 0 for count in backlog.values())
        is_due = self._is_first or (is_enough and time.monotonic() >= self._mark_at)
        self._is_first = False
        again = self._recreated(cluster, begin, queue_ends.keys() & begin.ends.keys() if is_due else back, back)
        if again:
            lows = _answers(cluster.min_offsets(again), by_all=is_bounded)
            self._report_loss(begin, queue_ends, lows)
            starts |= lows
            backlog |= {queue: queue_ends[queue] - low for queue, low in lows.items()}
            back = {queue: end for queue, end in back.items() if queue not in again}
        self._report_loss(begin, queue_ends, back)
        if patient and not starts and not back and not is_enough:
            return None
        taken = self._admit(cluster, begin, starts, backlog, takes_all=takes_all)
        positions = {**begin.ends, **starts, **back}
        for queue, count in taken.items():
            positions[queue] += count
        if positions == begin.ends and not again:
            return None
        self._last_batch_at = time.monotonic()
        end = SourceOffsets(positions, starts, {}, begin.mark_offsets, begin.mark_store_times_ms)
        return self._marked(cluster, end, queue_ends, is_due=is_due)

    def _back(
        self, cluster: SparkCluster, begin: SourceOffsets, behind: Iterable[MessageQueue], *, by_all: bool
    ) -> dict[MessageQueue, int]:
        """Return the end offsets of the queues in `behind` that really end below the query's offset.

        The masters are asked, because the known end offset may come from a slave that is behind its master.
        """
        wanted = [queue for queue in behind if queue in begin.ends]
        ends = _answers(cluster.max_offsets(wanted), by_all=by_all) if wanted else {}
        return {queue: end for queue, end in ends.items() if end < begin.ends[queue]}

    def _recreated(
        self,
        cluster: SparkCluster,
        begin: SourceOffsets,
        looked: Collection[MessageQueue],
        back: Collection[MessageQueue],
    ) -> list[MessageQueue]:
        """Return the queues whose topic was recreated: the message at the mark has another store time.

        If there is no message at the mark, the message may have expired. But a queue in `back` ends below the query's
        offset, so it counts as recreated.
        """
        marked = {queue: begin.mark_offsets[queue] for queue in looked if queue in begin.mark_offsets}
        there = cluster.store_times_ms(marked).values if marked else {}
        others = {queue for queue, time_ms in there.items() if time_ms not in (begin.mark_store_times_ms[queue], -1)}
        return sorted(others | {queue for queue in back if there.get(queue) == -1 or queue not in marked})

    def _marked(
        self, cluster: SparkCluster, end: SourceOffsets, queues: Iterable[MessageQueue], *, is_due: bool
    ) -> SourceOffsets:
        """Return the end of a batch with new marks for its new queues, or for all `queues` if `is_due`.

        A mark is the offset and store time of a queue's last read message. The brokers of `queues` have answered.
        """
        marking = [queue for queue in queues if is_due or queue in end.new_queue_starts]
        last = {queue: at - 1 for queue in marking if (at := end.ends.get(queue, 0)) > 0}
        found = cluster.store_times_ms(last).values if last else {}
        times = {queue: time_ms for queue, time_ms in found.items() if time_ms >= 0}
        kept = {
            queue: at
            for queue, at in end.mark_offsets.items()
            if queue in end.ends and queue not in end.new_queue_starts
        }
        if is_due:
            self._mark_at = time.monotonic() + RECREATION_CHECK_SECONDS
        return replace(
            end,
            mark_offsets=kept | {queue: last[queue] for queue in times},
            mark_store_times_ms={queue: end.mark_store_times_ms[queue] for queue in kept} | times,
        )

    def _starts(
        self, cluster: SparkCluster, new: Mapping[MessageQueue, int], *, by_all: bool
    ) -> dict[MessageQueue, int]:
        """Return the start of each new queue: the group's offset, else the first message. `new` has the end offsets."""
        starts = _answers(cluster.min_offsets(new), by_all=by_all)
        if not self._options.commit_offsets:
            return starts
        # the group has an offset if the queue reappeared after `queueRetention`, or another consumer read it
        committed = _answers(cluster.committed_offsets(self._options.group, starts), by_all=by_all)
        return {
            queue: max(low, min(committed[queue] or 0, new[queue]))
            for queue, low in starts.items()
            if queue in committed
        }

    def _admit(
        self,
        cluster: SparkCluster,
        begin: SourceOffsets,
        starts: Mapping[MessageQueue, int],
        backlog: Mapping[MessageQueue, int],
        *,
        takes_all: bool,
    ) -> dict[MessageQueue, int]:
        options = self._options
        waiting = {queue: count for queue, count in backlog.items() if count > 0}
        if takes_all:
            return waiting
        if self.max_offsets is not None:
            waiting = share_messages(waiting, self.max_offsets) if self.max_offsets else {}
        if options.max_bytes is not None and waiting:
            lows = {queue: begin.ends.get(queue, starts.get(queue, 0)) for queue in waiting}
            self._sizes |= cluster.mean_sizes(lows).values
            sizes = {queue: self._sizes.get(queue, UNKNOWN_SIZE_BYTES) for queue in waiting}
            waiting = share_messages_by_bytes(waiting, sizes, options.max_bytes)
        return waiting

    def _is_enough(self, backlog: Mapping[MessageQueue, int]) -> bool:
        """Return whether `minOffsetsPerTrigger` messages wait, or any message waits and `maxTriggerDelay` is over."""
        waiting = sum(count for count in backlog.values() if count > 0)
        is_late = time.monotonic() - self._last_batch_at >= self._options.max_trigger_delay_seconds
        return waiting >= (self._options.min_offsets or 0) or (waiting > 0 and is_late)

    def _report_loss(
        self, begin: SourceOffsets, heads: Mapping[MessageQueue, int], continuing: Mapping[MessageQueue, int]
    ) -> None:
        """Log that queues were recreated or lost their last messages; with `fail_on_data_loss`, raise DataLossError.

        `continuing` has the offset at which the query continues in each such queue. RangePlan detects other losses.
        """
        for queue, offset in sorted(continuing.items()):
            position, head = begin.ends[queue], heads[queue]
            if self._options.fail_on_data_loss:
                lost = (head, position) if head < position else (min(position, head - 1), head)
                raise DataLossError(queue, lost, (0, head))
            log.warning("spark.queue_went_back", queue=str(queue), position=position, ends_at=head, goes_on_at=offset)


def _answers(answers: QueueResponses[T], *, by_all: bool) -> dict[MessageQueue, T]:
    return values_or_raise(answers) if by_all else answers.values


@dataclass(frozen=True, slots=True)
class QueryLag:
    """The number of unread messages of a query, by queue. Queues whose broker did not answer are left out."""

    queues: Mapping[MessageQueue, int]

    @property
    def total(self) -> int:
        return sum(self.queues.values())


def lag_of(progress: Mapping[str, Any] | None) -> QueryLag | None:
    """Return the lag in a query's `progress`; None if `progress` is None, or lacks the end offsets of the queues."""
    found: dict[MessageQueue, int] = {}
    is_known = False
    for source in progress["sources"] if progress is not None else ():
        end, latest = parse_reported_offsets(source["endOffset"]), parse_reported_offsets(source["latestOffset"])
        if end is not None and latest is not None:
            is_known = True
            found |= {queue: max(0, at - end.ends.get(queue, 0)) for queue, at in latest.ends.items()}
    return QueryLag(found) if is_known else None
