"""Brokers that are down and in no route any more: this member keeps the queues that it has there.

Name servers take a broker out of the routes when it is silent, and a rebalance would give its queues up. That would win
nothing, as nobody can consume them, and cost duplicates: a queue that is given up and taken again goes on where the
broker was when it last wrote its offsets to disk, and what was handled since would be handled twice. So such queues
are kept for ten minutes, with their caches and with what this member knows of their offsets.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import structlog

from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

SURE_SECONDS: Final = 3.0  # until the routes of all topics have been asked for once
KEEP_SECONDS: Final = 600.0  # a machine is replaced in that time; after it, the broker has been taken away


class Absences:
    """Remembers which brokers of one group are away, and says which queues are kept for them."""

    def __init__(self, client: ClientInstance, clock: Clock) -> None:
        self.is_unsure = False
        """Whether another look should follow soon."""
        self._client = client
        self._clock = clock
        self._since: dict[str, float] = {}  # by the broker's name (monotonic)
        self._missed: dict[tuple[str, str], float] = {}  # by topic, and the name of a broker that answers

    def kept(self, topic: str, held: Collection[MessageQueue]) -> frozenset[MessageQueue]:
        """Those of a topic's queues held here that are to be kept although the topic's route does not have them."""
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
            # a broker that answers and is in other topics' routes does not have this topic any more; one that is in
            # none has not registered yet with a name server that was restarted just now
            return is_unsure or name not in routes.brokers()
        if name not in self._since:
            log.warning("broker.away", broker=name, kept_seconds=KEEP_SECONDS)
            self._since[name] = now
        return now - self._since[name] < KEEP_SECONDS
