"""Has brokers make the retry topic of a stream's group: without it mqadmin cannot show how far the group is.

`mqadmin consumerProgress -g` asks the brokers in the route of the group's retry topic. A broker makes that topic when a
consumer of the group connects, and a stream is no member of its group.
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

AGAIN_SECONDS: Final = 60.0  # before brokers that did not make it are asked again


class RetryTopics:
    """At which brokers the retry topic of a group is. Each is asked to make it once."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._brokers: set[str] = set()
        self._rests_until = 0.0

    def ensure(self, cluster: Cluster, queues: Collection[MessageQueue]) -> None:
        """Have the brokers of these queues make it, if nobody is connected in the group.

        Raises nothing: the group's offsets are right without the topic, and are only not shown.
        """
        missing = {queue.broker_name for queue in queues} - self._brokers
        if not missing or time.monotonic() < self._rests_until:
            return
        known = cluster.queues([retry_topic(self._group)])
        self._brokers |= {queue.broker_name for found in known.found.values() for queue in found}
        missing -= self._brokers
        # without an answer of a name server it is not known where the topic is
        is_known = all(isinstance(error, RouteNotFoundError) for error in known.failed.values())
        if missing and is_known:
            made = cluster.make_retry_topic(self._group, [one for one in queues if one.broker_name in missing])
            self._brokers |= {queue.broker_name for queue in made.found}
            for error in made.failures[:1]:
                log.info("spark.retry_topic_missing", group=self._group, brokers=sorted(missing), error=str(error))
        if not missing <= self._brokers:
            self._rests_until = time.monotonic() + AGAIN_SECONDS
