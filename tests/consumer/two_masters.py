"""A cluster of two scripted masters."""

from __future__ import annotations

import contextlib
from collections.abc import Container
from typing import Any

from rmqd.codes import RequestCode
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic, retry_topic
from tests.client.peer import Peer, route_of, routes
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import ScriptedBroker


class Two:
    """A name server, and masters a and b with one queue each, unless a test gives the topic more."""

    def __init__(self, name_server: Peer, a: ScriptedBroker, b: ScriptedBroker) -> None:
        self.name_server, self.a, self.b = name_server, a, b
        self._routes: dict[str, TopicRouteData] = {}
        name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes(self._routes))
        self.route(a, b)
        for broker in (a, b):
            broker.offsets[GROUP, MessageQueue(retry_topic(GROUP), broker.name, 0)] = 0

    def route(
        self,
        *brokers: ScriptedBroker,
        queues: int = 1,
        topics: tuple[str, ...] = (TOPIC, retry_topic(GROUP)),
        slaves: Container[str] = (),
    ) -> None:
        """Change the name server's routes; brokers named in `slaves` have only a slave."""
        for topic in topics:
            number = 1 if is_retry_topic(topic) else queues
            for broker in brokers:
                broker.create_topic(topic, number)
            addresses = {broker.name: {int(broker.name in slaves): broker.peer.address} for broker in brokers}
            self._routes[topic] = route_of(addresses, number)

    def forget_groups(self) -> None:
        """Make groups new to both brokers."""
        for broker in (self.a, self.b):
            broker.knows_groups = False
            broker.offsets.clear()

    def member(self, seen: Any, **options: Any) -> contextlib.AbstractAsyncContextManager[Member]:
        """A member with short intervals; they are longer with a clock of the test, on which a second is short."""
        often = 1.0 if "clock" in options else 0.1
        times = {
            "persist_consumer_offset_interval_seconds": often / 2,
            "heartbeat_seconds": 3 * often,
            "poll_seconds": 2 * often,
        }
        return member(self.name_server.address, seen, **{**times, **options})
