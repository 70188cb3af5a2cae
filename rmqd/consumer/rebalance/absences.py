"""Brokers that are down and missing from all routes: this member keeps its queues there.

Name servers remove a silent broker from the routes, and a rebalance would then release its queues. That has no benefit,
because no member can consume them, and it causes duplicates. A queue that is released and acquired again continues at
the offset that the broker last wrote to disk, and messages handled since then would be handled again. So such queues
are kept for ten minutes, with their caches and their known offsets.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import structlog

from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

SURE_SECONDS: Final = 3.0  # until the routes of all topics have been requested once
KEEP_SECONDS: Final = 600.0  # time for replacing a machine; afterwards the broker counts as removed


class Absences:
    """Tracks the missing brokers of one group, and decides which queues are kept for them."""

    def __init__(self, client: ClientInstance, clock: Clock) -> None:
        self.is_unsure = False
        """Whether another check should follow soon."""
        self._client = client
        self._clock = clock
        self._since: dict[str, float] = {}  # broker name -> since when (monotonic)
        self._missed: dict[tuple[str, str], float] = {}  # (topic, name of a reachable broker) -> since when

    def kept(self, topic: str, held: Collection[MessageQueue]) -> frozenset[MessageQueue]:
        """Return the held queues of a topic that must be kept although the topic's route does not contain them."""
        route = self._client.routes.route(topic)
        present = frozenset(broker.broker_name for broker in route.broker_datas) if route is not None else frozenset()
        endpoints = {queue: self._client.routes.endpoint(queue) for queue in held}
        for name in present & self._since.keys():
            log.info("broker.returned", broker=name, seconds=round(self._clock.monotonic() - self._since.pop(name)))
        for name in present:
            self._missed.pop((topic, name), None)
        self.is_unsure = False
        away = {name for name in set(endpoints.values()) - present if self._is_away(topic, name)}
        return frozenset(queue for queue, name in endpoints.items() if name in away)

    def _is_away(self, topic: str, name: str) -> bool:
        now, routes = self._clock.monotonic(), self._client.routes
        if self._client.replicas.is_reachable(name):
            if (topic, name) not in self._missed:
                self._missed[topic, name] = now
                routes.refresh_soon()
            is_unsure = now - self._missed[topic, name] < SURE_SECONDS
            self.is_unsure = self.is_unsure or is_unsure
            # A reachable broker that is in other topics' routes does not have this topic any more. A reachable broker
            # in no route has not registered yet with a name server that has just restarted.
            return is_unsure or name not in routes.brokers()
        if name not in self._since:
            log.warning("broker.away", broker=name, kept_seconds=KEEP_SECONDS)
            self._since[name] = now
        return now - self._since[name] < KEEP_SECONDS
