"""The queues that a query reads, its start and end offsets, and the commits of its offsets for a consumer group.

A query continues at the offsets in Spark's checkpoint. It also commits these offsets to the brokers, for the group's
next consumer and for `mqadmin consumerProgress`. `consumerProgress` asks the brokers in the route of the group's retry
topic, which a broker creates when a consumer connects. A stream is not a member of its group, so it joins and leaves
the group briefly to create the retry topic. Three rules protect other users of the group:

- A committed offset never decreases. If the broker's offset of a queue is above the query's offset, nothing is
  committed for this queue until the query has passed the broker's offset. Another consumer has handled the messages in
  between, or an operator has moved the group, and a lower commit would repeat these messages. The exception is a
  recreated queue, whose old offset may be above its end.
- While consumers are connected in the group, nothing is committed. The consumers read the group's offsets at each
  rebalance, and would skip messages that only the query has read.
- Offsets of a queue without a route or without a master are committed when the queue is available again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.errors import RmqdError, RouteNotFoundError
from rmqd.spark.session.queue_queries import QueueResponses, existing_values_or_raise
from rmqd.spark.session.spark_cluster import SparkCluster, cluster_of, values_or_raise
from rmqd.spark.source.source_offsets import EARLIEST_OFFSET, LATEST_OFFSET, OffsetBound
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_dlq_topic, is_retry_topic, is_system_topic, retry_topic

if TYPE_CHECKING:
    from rmqd.spark.source.source_options import SourceOptions


log = structlog.get_logger(__name__)

RETRY_TOPIC_RETRY_SECONDS: Final = 60.0  # pause before a failed attempt to create retry topics is repeated


class SubscribedQueues:
    """The queues that a query reads. While no name server answers, the last known queues are used."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._known: frozenset[MessageQueue] = frozenset()
        self._refreshed_at: float | None = None
        self._gone: frozenset[str] = frozenset()

    def refreshed(self, cluster: SparkCluster, *, all_topics: bool = True) -> frozenset[MessageQueue]:
        """Return the queues in the current routes of the topics.

        Raises RouteNotFoundError if a topic or an assigned queue does not exist, and RmqdError if no name server
        answers. With `all_topics` false, it is enough that one topic exists.
        """
        options = self._options
        if options.assigned_queues:
            found = values_or_raise(cluster.queues({queue.topic for queue in options.assigned_queues}))
            there = {queue for queues in found.values() for queue in queues}
            missing = sorted(set(options.assigned_queues) - there)
            if missing:
                raise RouteNotFoundError(missing[0].topic, f"assign names {missing[0]}, but this queue does not exist")
            self._known = frozenset(options.assigned_queues)
        else:
            answers = cluster.queues(self._topics(cluster))
            others = [] if all_topics else [queue for queue in answers.values if queue.topic != options.retry_topic]
            for queue in _without_route(answers):
                # may be missing: a retry topic without retries, a deleted topic of a pattern, any topic if others exist
                if queue.topic not in options.topics or others:
                    del answers.errors[queue]
            found = values_or_raise(answers)
            self._known = frozenset(queue for queues in found.values() for queue in queues)
        self._refreshed_at = time.monotonic()
        return self._known

    def refreshed_if_due(self, cluster: SparkCluster) -> frozenset[MessageQueue]:
        """Return the queues. If the last refresh is `routeRefreshMs` ago, query the name servers first."""
        options, now = self._options, time.monotonic()
        if self._refreshed_at is not None and now - self._refreshed_at < options.route_refresh_seconds:
            return self._known
        self._refreshed_at = now
        if options.assigned_queues:
            self._known = frozenset(options.assigned_queues)
            return self._known
        answers = cluster.queues(self._topics(cluster))
        gone = frozenset(queue.topic for queue in _without_route(answers))
        unanswered = {queue.topic for queue in answers.errors} - gone
        for topic in sorted(gone - self._gone - {options.retry_topic}):
            log.warning("spark.topic_gone", topic=topic)
        self._gone = gone
        found = {queue for queues in answers.values.values() for queue in queues}
        self._known = frozenset(found | {queue for queue in self._known if queue.topic in unanswered})
        return self._known

    def _topics(self, cluster: SparkCluster) -> tuple[str, ...]:
        topics = self._options.topics
        if self._options.topic_pattern:
            pattern = re.compile(self._options.topic_pattern)
            topics = tuple(topic for topic in cluster.topics() if _is_users(topic) and pattern.fullmatch(topic))
        retries = self._options.retry_topic
        return (*topics, retries) if retries and retries not in topics else topics


def _without_route(answers: QueueResponses[list[MessageQueue]]) -> list[MessageQueue]:
    return [queue for queue, error in answers.errors.items() if isinstance(error, RouteNotFoundError)]


def _is_users(topic: str) -> bool:
    return not (is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic))


def start_offsets_of(
    cluster: SparkCluster, options: SourceOptions, default: OffsetBound, queues: Iterable[MessageQueue]
) -> dict[MessageQueue, int]:
    """Return the start offset of each queue; `default` if no option sets a start. Raises the errors of `resolve_bound`.

    Queues of the retry topic start at their first message unless an option sets an offset for them, because all retries
    belong to this group.
    """
    bound, wanted = options.start_bound or default, set(queues)
    retries = {queue for queue in wanted if queue.topic == options.retry_topic}
    by_retries = {queue: bound.by_queue[queue] for queue in retries & bound.by_queue.keys()}
    by_others = {queue: value for queue, value in bound.by_queue.items() if queue not in retries}
    found = resolve_bound(
        cluster, options, replace(bound, by_queue=by_others), wanted - retries, options.default_start_bound
    )
    return found | resolve_bound(
        cluster, options, replace(bound, by_queue=by_retries), retries, OffsetBound("earliest")
    )


def resolve_bound(
    cluster: SparkCluster,
    options: SourceOptions,
    bound: OffsetBound,
    queues: Iterable[MessageQueue],
    default: OffsetBound,
) -> dict[MessageQueue, int]:
    """Return the offset of `bound` in each queue, or of `default` in a queue that `bound` does not cover.

    Raises RmqdError if a broker does not answer, or if `bound` names a queue that is not in `queues`.
    """
    wanted = sorted(queues)
    unknown = sorted(set(bound.by_queue) - set(wanted))
    if unknown:
        raise RmqdError(f"offsets are given for {unknown[0]}, which is not one of the queues to read")
    found: dict[MessageQueue, int] = {}
    if bound.kind == "earliest":
        found = values_or_raise(cluster.min_offsets(wanted))
    elif bound.kind == "latest":
        found = values_or_raise(cluster.max_offsets(wanted))
    elif bound.kind == "committed":
        committed = values_or_raise(cluster.committed_offsets(options.group, wanted))
        found = {queue: offset for queue, offset in committed.items() if offset is not None}
    elif bound.kind == "offsets":
        found = _named(cluster, bound.by_queue)
    elif bound.kind == "timestamp":
        found = _at(cluster, options, dict.fromkeys(wanted, bound.timestamp_ms))
    else:
        found = _at(cluster, options, bound.by_queue)
    missing = [queue for queue in wanted if queue not in found]
    if missing:
        found |= resolve_bound(cluster, options, default, missing, default)
    return found


def _named(cluster: SparkCluster, by_queue: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    lows = values_or_raise(
        cluster.min_offsets(queue for queue, offset in by_queue.items() if offset == EARLIEST_OFFSET)
    )
    highs = values_or_raise(cluster.max_offsets(queue for queue, offset in by_queue.items() if offset == LATEST_OFFSET))
    return {**by_queue, **lows, **highs}


def _at(cluster: SparkCluster, options: SourceOptions, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    found = values_or_raise(cluster.offsets_at_times(times_ms))
    if options.must_find_timestamp:
        highs = values_or_raise(cluster.max_offsets(times_ms))
        for queue, offset in sorted(found.items()):
            if offset >= highs[queue]:
                raise RmqdError(
                    f"{queue} has no message stored at or after {times_ms[queue]} (milliseconds since 1970); set "
                    "startingOffsetsByTimestampStrategy=latest to start such a queue at its end"
                )
    return found


MEMBER_CHECK_SECONDS: Final = 10.0  # how often to check whether the group has members
COMMIT_RETRY_SECONDS: Final = 10.0  # pause before a commit to an unavailable queue is tried again
WARNING_INTERVAL_SECONDS: Final = 60.0  # minimum interval between two warnings of the same kind
OTHER_CONSUMER_ADVICE: Final = (
    "if another query or consumer uses this groupId: give each its own, or set commitOffsets=false"
)


class GroupOffsetCommitter:
    """Commits a query's offsets to the brokers, unless there is no group, or commitOffsets is false."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._committed_offsets: dict[MessageQueue, int] = {}  # offsets of the query that need no commit
        self._stored: dict[MessageQueue, int] = {}  # the brokers' offsets of the group, as last read or committed
        self._away_until: dict[MessageQueue, float] = {}
        self._with_retry_topic: set[str] = set()  # the brokers that have the group's retry topic
        self._paused_until = 0.0
        self._failing = False
        self._warned_at: dict[str, float] = {}
        self._members_read_at: float | None = None
        self._in_use = False
        self._has_warned = False  # whether it is logged that nothing is committed

    def commit_start_offsets(self, start_offsets: Mapping[MessageQueue, int]) -> None:
        """Commit the query's start offsets in queues that have no offset of the group. Raises RmqdError."""
        if not self._options.commit_offsets:
            return
        cluster = cluster_of(self._options.access)
        known = existing_values_or_raise(cluster.committed_offsets(self._options.group, start_offsets))
        missing = {queue: start_offsets[queue] for queue, offset in known.items() if offset is None}
        existing_values_or_raise(cluster.commit(self._options.group, missing))

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets that changed since the last call. Errors are logged, and the next call repeats the commits."""
        if not self._options.commit_offsets:
            self._warn_once_that_nothing_is_committed()
            return
        now = time.monotonic()
        changed = {
            queue: offset
            for queue, offset in offsets.items()
            if self._committed_offsets.get(queue) != offset and self._away_until.get(queue, 0.0) <= now
        }
        try:
            if changed and not self._is_in_use(changed):
                self._commit(changed)
            self._failing = False
        except RmqdError as error:
            if not self._failing:
                log.warning("spark.not_committed", group=self._options.group, error=str(error))
            self._failing = True

    def _commit(self, changed: Mapping[MessageQueue, int]) -> None:
        """Commit the offsets of queues whose brokers answer. Then raise the error of another broker, if any."""
        cluster, group = cluster_of(self._options.access), self._options.group
        asked = cluster.committed_offsets(group, changed)
        due = self._due(cluster, asked.values, changed)
        answers = cluster.commit(group, due)
        taken = {queue: due[queue] for queue in answers.values}
        self._committed_offsets |= taken
        self._stored |= taken
        self._away_until |= dict.fromkeys(
            asked.missing_queues | answers.missing_queues, time.monotonic() + COMMIT_RETRY_SECONDS
        )
        self._make_retry_topics(cluster, asked.values)
        for error in (*asked.other_errors, *answers.other_errors):
            raise error

    def _make_retry_topics(self, cluster: SparkCluster, queues: Collection[MessageQueue]) -> None:
        """Create the group's retry topic on the brokers of these queues, if no consumer is connected in the group.

        Errors are only logged, because without the retry topic the group's offsets are still correct, although
        `consumerProgress` does not show them. A broker that has the topic is not asked again.
        """
        group, missing = self._options.group, {queue.broker_name for queue in queues} - self._with_retry_topic
        if not missing or time.monotonic() < self._paused_until:
            return
        known = cluster.queues([retry_topic(group)])
        self._with_retry_topic |= {queue.broker_name for found in known.values.values() for queue in found}
        missing -= self._with_retry_topic
        # if the name servers failed for another reason, it is unknown which brokers have the topic
        is_known = all(isinstance(error, RouteNotFoundError) for error in known.errors.values())
        if missing and is_known:
            made = cluster.make_retry_topic(group, [one for one in queues if one.broker_name in missing])
            self._with_retry_topic |= {queue.broker_name for queue in made.values}
            for error in made.other_errors[:1]:
                log.info("spark.retry_topic_missing", group=group, brokers=sorted(missing), error=str(error))
        if not missing <= self._with_retry_topic:
            self._paused_until = time.monotonic() + RETRY_TOPIC_RETRY_SECONDS

    def _due(
        self, cluster: SparkCluster, found: Mapping[MessageQueue, int | None], changed: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """Return the offsets in `changed` that must be committed. `found` has the offsets that the brokers have."""
        due, ahead = {}, {}
        others = {queue: at for queue, at in found.items() if at is not None and at != self._stored.get(queue, at)}
        stored = {queue: self._stored[queue] for queue in others}
        for queue, at in found.items():
            if at is not None:
                self._stored[queue] = at
            if at is None or at < changed[queue]:
                due[queue] = changed[queue]
            else:
                self._committed_offsets[queue] = changed[queue]
            if at is not None and at > changed[queue]:
                ahead[queue] = at
        ends = cluster.max_offsets(ahead).values if ahead else {}
        recreated = {queue: changed[queue] for queue, at in ahead.items() if at > ends.get(queue, at)}
        ahead = {queue: at for queue, at in ahead.items() if queue not in recreated}
        if self._is_due("ahead", ahead):
            place = _by_name({queue: changed[queue] for queue in ahead})
            log.warning("spark.checkpoint_overtaken", **self._facts(ahead), query=place, follows="the checkpoint")
        if self._is_due("moved", others):
            log.warning(
                "spark.group_moved_by_others",
                **self._facts(others),
                stored=_by_name(stored),
                action=OTHER_CONSUMER_ADVICE,
            )
        return due | recreated

    def _is_in_use(self, queues: Mapping[MessageQueue, int]) -> bool:
        """Return whether consumers are connected in the group; the query itself does not count. Raises RmqdError."""
        now = time.monotonic()
        if self._members_read_at is None or now - self._members_read_at >= MEMBER_CHECK_SECONDS:
            members = cluster_of(self._options.access).members(self._options.group, queues)
            self._members_read_at, self._in_use = now, bool(members)
            if members:
                action = "nothing is committed"
                log.warning("spark.group_in_use", group=self._options.group, members=sorted(members), action=action)
        return self._in_use

    def _warn_once_that_nothing_is_committed(self) -> None:
        """Log once that offsets are not committed, if the query has a group and `commitOffsets` is not set."""
        if self._options.group and "commitOffsets" not in self._options.given_options and not self._has_warned:
            self._has_warned = True
            log.info("spark.commits_disabled", group=self._options.group, accepted="commitOffsets=true")

    def _is_due(self, what: str, committed: Mapping[MessageQueue, int]) -> bool:
        """Return whether to log the warning `what` about `committed`, at most once in WARNING_INTERVAL_SECONDS."""
        now = time.monotonic()
        if not committed or now - self._warned_at.get(what, -WARNING_INTERVAL_SECONDS) < WARNING_INTERVAL_SECONDS:
            return False
        self._warned_at[what] = now
        return True

    def _facts(self, committed: Mapping[MessageQueue, int]) -> dict[str, object]:
        return {"group": self._options.group, "committed": _by_name(committed)}


def _by_name(offsets: Mapping[MessageQueue, int]) -> dict[str, int]:
    """Return the offsets with the queues as text, sorted, for the log."""
    return {str(queue): offsets[queue] for queue in sorted(offsets)}
