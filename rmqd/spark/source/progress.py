"""How far a query goes on: where the queues end, and how much of that its next batch takes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from rmqd.errors import DataLossError
from rmqd.spark.answers import Answers
from rmqd.spark.cluster import Cluster, everyone
from rmqd.spark.source.admission import share, share_bytes
from rmqd.spark.source.offsets import Offsets
from rmqd.spark.source.silent_brokers import SilentBrokers
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmqd.spark.source.options import SourceOptions

log = structlog.get_logger(__name__)

T = TypeVar("T")

MARK_SECONDS: Final = 60.0  # between two looks at whether topics were created again
UNKNOWN_SIZE_BYTES: Final = 1024.0  # until a broker has told a queue's message sizes


class Heads:
    """The queues' ends. They are asked for every `fetchOffset.intervalMs` at most: Spark polls 90 times a second."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._asked_at: float | None = None
        self._pinned: dict[MessageQueue, int] | None = None
        self.silent = SilentBrokers(options.tolerance_seconds)
        """The queues whose brokers did not answer when others did."""
        self.last: dict[MessageQueue, int] = {}
        """As they were when they were last asked for."""

    @property
    def pinned(self) -> bool:
        """Whether the ends are fixed, as for a bounded query."""
        return self._pinned is not None

    @property
    def age_left_seconds(self) -> float:
        """How long `now` still gives the ends that were asked for last; 0 where it asks."""
        if self._asked_at is None:
            return 0.0
        return max(0.0, self._asked_at + self._options.fetch_interval_seconds - time.monotonic())

    def pin(self, cluster: Cluster, queues: Iterable[MessageQueue]) -> None:
        """Fix the ends at their present values, for a bounded query. Raises RmqdError if a master does not answer.

        By a slave that is behind, the query would end before what its master has.
        """
        self._pinned = everyone(cluster.max_offsets(queues))
        self.last = dict(self._pinned)

    def reach(self, positions: Mapping[MessageQueue, int]) -> None:
        """Raise pinned ends to where the query starts, if they are below it. The difference is not a loss of data."""
        if self._pinned is not None:
            self._pinned |= {queue: max(self._pinned.get(queue, at), at) for queue, at in positions.items()}

    def now(self, cluster: Cluster, queues: Collection[MessageQueue]) -> Mapping[MessageQueue, int]:
        """The ends of the queues whose brokers answered. Raises RmqdError where none did."""
        if self._pinned is not None:
            return self._pinned
        if self.age_left_seconds:
            return self.last
        now = time.monotonic()
        answers = self.silent.ends(cluster, queues)
        if answers.failed and not answers.found:
            everyone(answers)
        self.silent.look(answers)
        self._asked_at = now
        self.last = answers.found
        return self.last


class Progress:
    """Makes a batch's end of its start and the queues' ends."""

    def __init__(self, options: SourceOptions) -> None:
        self.max_offsets = options.max_offsets
        """The most messages in the next batch."""
        self._options = options
        self._sizes: dict[MessageQueue, float] = {}
        self._last_batch_at = time.monotonic()
        self._is_first = True
        self._mark_at = 0.0

    def next(
        self, cluster: Cluster, begin: Offsets, heads: Mapping[MessageQueue, int], *, takes_all: bool, is_bounded: bool
    ) -> Offsets | None:
        """Where the next batch ends; None where it would be empty. Raises RmqdError.

        A queue whose broker does not answer is left to a later batch, unless the query is bounded: then an empty batch
        is the last one, and the error is raised.
        """
        new = {queue: head for queue, head in heads.items() if queue not in begin.positions}
        starts = self._starts(cluster, new, by_all=is_bounded) if new else {}
        backlog = {}
        for queue, head in heads.items():
            low = begin.positions.get(queue, starts.get(queue))
            if low is not None:
                backlog[queue] = head - low
        back = self._back(cluster, begin, [queue for queue, count in backlog.items() if count < 0], by_all=is_bounded)
        patient = not takes_all and self._options.min_offsets is not None
        is_enough = self._is_enough(backlog) if patient else any(count > 0 for count in backlog.values())
        is_due = self._is_first or (is_enough and time.monotonic() >= self._mark_at)
        self._is_first = False
        again = self._made_again(cluster, begin, heads.keys() & begin.positions.keys() if is_due else back, back)
        if again:
            lows = _answers(cluster.min_offsets(again), by_all=is_bounded)
            self._report_loss(begin, heads, lows)
            starts |= lows
            backlog |= {queue: heads[queue] - low for queue, low in lows.items()}
            back = {queue: end for queue, end in back.items() if queue not in again}
        self._report_loss(begin, heads, back)
        if patient and not starts and not back and not is_enough:
            return None
        taken = self._admit(cluster, begin, starts, backlog, takes_all=takes_all)
        positions = {**begin.positions, **starts, **back}
        for queue, count in taken.items():
            positions[queue] += count
        if positions == begin.positions and not again:
            return None
        self._last_batch_at = time.monotonic()
        end = Offsets(positions, starts, {}, begin.marks, begin.marked_ms)
        return self._marked(cluster, end, heads, is_due=is_due)

    def _back(
        self, cluster: Cluster, begin: Offsets, behind: Iterable[MessageQueue], *, by_all: bool
    ) -> dict[MessageQueue, int]:
        """The ends of those queues in `behind` that really end below the query's position.

        The masters are asked anew: a slave may have told the end, which only is behind its master.
        """
        wanted = [queue for queue in behind if queue in begin.positions]
        ends = _answers(cluster.max_offsets(wanted), by_all=by_all) if wanted else {}
        return {queue: end for queue, end in ends.items() if end < begin.positions[queue]}

    def _made_again(
        self, cluster: Cluster, begin: Offsets, looked: Collection[MessageQueue], back: Collection[MessageQueue]
    ) -> list[MessageQueue]:
        """The queues whose topic was created again: another message is where one was read.

        Retention may have removed that one, but not from a queue in `back`, which ends below the query's place.
        """
        marked = {queue: begin.marks[queue] for queue in looked if queue in begin.marks}
        there = cluster.stored_at(marked).found if marked else {}
        others = {queue for queue, time_ms in there.items() if time_ms not in (begin.marked_ms[queue], -1)}
        return sorted(others | {queue for queue in back if there.get(queue) == -1 or queue not in marked})

    def _marked(self, cluster: Cluster, end: Offsets, queues: Iterable[MessageQueue], *, is_due: bool) -> Offsets:
        """The end of a batch, with new marks for new queues, and for all if the former ones were looked at just now.

        `queues` are those whose brokers answer.
        """
        marking = [queue for queue in queues if is_due or queue in end.new]
        last = {queue: at - 1 for queue in marking if (at := end.positions.get(queue, 0)) > 0}
        found = cluster.stored_at(last).found if last else {}
        times = {queue: time_ms for queue, time_ms in found.items() if time_ms >= 0}
        kept = {queue: at for queue, at in end.marks.items() if queue in end.positions and queue not in end.new}
        if is_due:
            self._mark_at = time.monotonic() + MARK_SECONDS
        return replace(
            end,
            marks=kept | {queue: last[queue] for queue in times},
            marked_ms={queue: end.marked_ms[queue] for queue in kept} | times,
        )

    def _starts(self, cluster: Cluster, new: Mapping[MessageQueue, int], *, by_all: bool) -> dict[MessageQueue, int]:
        """Where new queues start: at their first messages, or where their group is in them; `new` has their ends."""
        starts = _answers(cluster.min_offsets(new), by_all=by_all)
        if not self._options.commit_offsets:
            return starts
        # one that was gone for long and is back, or one that the group consumed by other means
        committed = _answers(cluster.committed(self._options.group, starts), by_all=by_all)
        return {
            queue: max(low, min(committed[queue] or 0, new[queue]))
            for queue, low in starts.items()
            if queue in committed
        }

    def _admit(
        self,
        cluster: Cluster,
        begin: Offsets,
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
            waiting = share(waiting, self.max_offsets) if self.max_offsets else {}
        if options.max_bytes is not None and waiting:
            lows = {queue: begin.positions.get(queue, starts.get(queue, 0)) for queue in waiting}
            self._sizes |= cluster.mean_sizes(lows).found
            sizes = {queue: self._sizes.get(queue, UNKNOWN_SIZE_BYTES) for queue in waiting}
            waiting = share_bytes(waiting, sizes, options.max_bytes)
        return waiting

    def _is_enough(self, backlog: Mapping[MessageQueue, int]) -> bool:
        """Whether so much waits, or for so long, that a batch is worth while."""
        waiting = sum(count for count in backlog.values() if count > 0)
        is_late = time.monotonic() - self._last_batch_at >= self._options.max_trigger_delay_seconds
        return waiting >= (self._options.min_offsets or 0) or (waiting > 0 and is_late)

    def _report_loss(
        self, begin: Offsets, heads: Mapping[MessageQueue, int], going_on: Mapping[MessageQueue, int]
    ) -> None:
        """Report queues that were created again, or whose last messages a broker lost, and where the query continues.

        This is the second place, beside RangePlan, at which a query finds that data is lost.
        """
        for queue, offset in sorted(going_on.items()):
            position, head = begin.positions[queue], heads[queue]
            if self._options.fail_on_data_loss:
                lost = (head, position) if head < position else (min(position, head - 1), head)
                raise DataLossError(queue, lost, (0, head))
            log.warning("spark.queue_went_back", queue=str(queue), position=position, ends_at=head, goes_on_at=offset)


def _answers(answers: Answers[T], *, by_all: bool) -> dict[MessageQueue, T]:
    return everyone(answers) if by_all else answers.found
