"""Creates the retry topic of a stream's group, because mqadmin needs it to show the group's progress.

`mqadmin consumerProgress -g` asks the brokers in the route of the group's retry topic. A broker creates that topic when
a consumer of the group connects, and a stream is not a member of its group.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

import structlog

from rmqd.errors import RouteNotFoundError
from rmqd.spark.cluster import Cluster
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic

log = structlog.get_logger(__name__)

AGAIN_SECONDS: Final = 60.0  # before a failed attempt is repeated


class RetryTopics:
    """The brokers that have the retry topic of a group. Each is asked once to create it."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._brokers: set[str] = set()
        self._rests_until = 0.0

    def ensure(self, cluster: Cluster, queues: Collection[MessageQueue]) -> None:
        """Create the topic at the brokers of these queues, if no consumer is connected in the group.

        Raises nothing: without the topic the group's offsets are correct, and only not displayed.
        """
        missing = {queue.broker_name for queue in queues} - self._brokers
        if not missing or time.monotonic() < self._rests_until:
            return
        known = cluster.queues([retry_topic(self._group)])
        self._brokers |= {queue.broker_name for found in known.found.values() for queue in found}
        missing -= self._brokers
        # without a name server's answer, it is unknown which brokers have the topic
        is_known = all(isinstance(error, RouteNotFoundError) for error in known.failed.values())
        if missing and is_known:
            made = cluster.make_retry_topic(self._group, [one for one in queues if one.broker_name in missing])
            self._brokers |= {queue.broker_name for queue in made.found}
            for error in made.failures[:1]:
                log.info("spark.retry_topic_missing", group=self._group, brokers=sorted(missing), error=str(error))
        if not missing <= self._brokers:
            self._rests_until = time.monotonic() + AGAIN_SECONDS
