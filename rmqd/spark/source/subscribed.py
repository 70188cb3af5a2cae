"""The queues that a query reads: the queues of its topics, refreshed at intervals, or the queues in `assign`."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import structlog

from rmqd.errors import RouteNotFoundError
from rmqd.spark.answers import Answers
from rmqd.spark.cluster import Cluster, everyone
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_dlq_topic, is_retry_topic, is_system_topic

if TYPE_CHECKING:
    from rmqd.spark.source.options import SourceOptions

log = structlog.get_logger(__name__)


class Subscribed:
    """The queues of a query. The last known queues are kept while no name server answers."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._known: frozenset[MessageQueue] = frozenset()
        self._looked_at: float | None = None
        self._gone: frozenset[str] = frozenset()

    def now(self, cluster: Cluster, *, all_topics: bool = True) -> frozenset[MessageQueue]:
        """Return the queues in the current routes.

        Raises RouteNotFoundError for a missing topic or queue (without `all_topics` only if all topics are missing),
        and RmqdError if no name server answers.
        """
        options = self._options
        if options.assigned:
            found = everyone(cluster.queues({queue.topic for queue in options.assigned}))
            there = {queue for queues in found.values() for queue in queues}
            missing = sorted(set(options.assigned) - there)
            if missing:
                raise RouteNotFoundError(missing[0].topic, f"assign names {missing[0]}, but this queue does not exist")
            self._known = frozenset(options.assigned)
        else:
            answers = cluster.queues(self._topics(cluster))
            for queue in _without_route(answers):
                # a retry topic without retries so far, or a topic of the pattern that was deleted since it was listed
                is_named = queue.topic in options.topics
                if not is_named or (not all_topics and answers.found):
                    del answers.failed[queue]
            found = everyone(answers)
            self._known = frozenset(queue for queues in found.values() for queue in queues)
        self._looked_at = time.monotonic()
        return self._known

    def refreshed(self, cluster: Cluster) -> frozenset[MessageQueue]:
        """Return the queues, refreshed if the last refresh is `routeRefreshMs` ago and a name server answers."""
        options, now = self._options, time.monotonic()
        if self._looked_at is not None and now - self._looked_at < options.route_refresh_seconds:
            return self._known
        self._looked_at = now
        if options.assigned:
            self._known = frozenset(options.assigned)
            return self._known
        answers = cluster.queues(self._topics(cluster))
        gone = frozenset(queue.topic for queue in _without_route(answers))
        unanswered = {queue.topic for queue in answers.failed} - gone
        for topic in sorted(gone - self._gone - {options.retry_topic}):
            log.warning("spark.topic_gone", topic=topic)
        self._gone = gone
        found = {queue for queues in answers.found.values() for queue in queues}
        self._known = frozenset(found | {queue for queue in self._known if queue.topic in unanswered})
        return self._known

    def _topics(self, cluster: Cluster) -> tuple[str, ...]:
        topics = self._options.topics
        if self._options.pattern:
            pattern = re.compile(self._options.pattern)
            topics = tuple(topic for topic in cluster.topics() if _is_users(topic) and pattern.fullmatch(topic))
        retries = self._options.retry_topic
        return (*topics, retries) if retries and retries not in topics else topics


def _without_route(answers: Answers[list[MessageQueue]]) -> list[MessageQueue]:
    return [queue for queue, error in answers.failed.items() if isinstance(error, RouteNotFoundError)]


def _is_users(topic: str) -> bool:
    return not (is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic))
