"""All known routes at one moment, and the brokers that have disappeared from all routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rmqd.runtime.clock import Clock
from rmqd.wire.bodies.route_data import TopicRouteData, queue_leaders
from rmqd.wire.fields import MAX_QUEUES
from rmqd.wire.message_queue import MessageQueue


def vip_address(address: str) -> str:
    """Return the address of a broker's VIP channel: its port minus 2 (`MixAll.brokerVIPChannel`)."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 2}"


Brokers = Mapping[str, Mapping[int, str]]  # broker name to replica id to address


@dataclass(frozen=True, slots=True)
class _MissingBroker:
    """The addresses of a missing broker by replica id. The first `update` after `until` (monotonic) removes them."""

    replicas: Mapping[int, str]
    until: float


class MissingBrokers:
    """The brokers that have disappeared from all routes. They are remembered for `grace_seconds`."""

    def __init__(self, clock: Clock, grace_seconds: float) -> None:
        self._clock = clock
        self._grace = grace_seconds
        self.by_name: dict[str, _MissingBroker] = {}

    def replicas(self, broker_name: str) -> Mapping[int, str]:
        """Return the last addresses of a missing broker by replica id; empty if the broker is not missing."""
        departed = self.by_name.get(broker_name)
        return {} if departed is None else departed.replicas

    def update(self, before: Brokers, present: Brokers) -> bool:
        """Record brokers that a change of routes removed. Returns whether a missing broker's grace period has ended."""
        now = self._clock.monotonic()
        known, self.by_name = self.by_name, {}
        for name, departed in known.items():
            if name not in present and now < departed.until:
                self.by_name[name] = departed
        for name in before.keys() - present.keys():
            self.by_name[name] = _MissingBroker(before[name], now + self._grace)
        return bool(known.keys() - self.by_name.keys() - present.keys())


class Routes:
    """The routes by topic, and their brokers. If two routes have different data of a broker, the newer route counts."""

    __slots__ = ("_leaders", "_readable", "brokers", "by_topic")

    def __init__(self, by_topic: Mapping[str, TopicRouteData] | None = None) -> None:
        self.by_topic: Mapping[str, TopicRouteData] = MappingProxyType(dict(by_topic or {}))
        self._readable: dict[str, list[MessageQueue]] = {}  # cached results of `readable`; a rebalance needs them twice
        self._leaders = {
            topic: queue_leaders(route.mappings) for topic, route in self.by_topic.items() if route.mappings
        }
        self.brokers: Mapping[str, Mapping[int, str]] = MappingProxyType(
            {
                broker.broker_name: MappingProxyType(dict(sorted(broker.broker_addrs.items())))
                for route in self.by_topic.values()
                for broker in route.broker_datas
            }
        )

    def replaced(self, changes: Mapping[str, TopicRouteData | None]) -> Routes:
        """Return a copy updated with `changes`: routes by topic; None removes a route. These routes count as newest."""
        if not changes:
            return self
        kept = {topic: route for topic, route in self.by_topic.items() if topic not in changes}
        return Routes(kept | {topic: route for topic, route in changes.items() if route is not None})

    def differs(self, other: Routes, topic: str) -> bool:
        """Return whether a topic's queues or brokers in `other` differ from these routes. Their order is ignored."""
        return _content(self.by_topic.get(topic)) != _content(other.by_topic.get(topic))

    def endpoint(self, queue: MessageQueue) -> str:
        """Return the name of the broker that serves a queue; for a static topic, this is the queue's present leader."""
        led = self._leaders.get(queue.topic) if self._leaders else None
        return queue.broker_name if led is None else led.get((queue.broker_name, queue.queue_id), queue.broker_name)

    def readable(self, topic: str) -> list[MessageQueue]:
        """Return the queues that consumers read: on all brokers whose permission for the topic includes reading."""
        if topic not in self._readable:
            self._readable[topic] = self._find_readable(topic)
        return list(self._readable[topic])

    def _find_readable(self, topic: str) -> list[MessageQueue]:
        route = self.by_topic.get(topic)
        if route is None:
            return []
        if topic in self._leaders:
            return sorted(MessageQueue(topic, *place) for place in self._leaders[topic])
        return sorted(
            MessageQueue(topic, queues.broker_name, queue_id)
            for queues in route.queue_datas
            if queues.is_readable
            for queue_id in range(queues.read_queue_nums)
        )

    def writable(self, topic: str) -> list[MessageQueue]:
        """Return the queues that producers send to: with write permission, on brokers that have a master.

        For an ordered topic, its configuration ("broker-a:4;broker-b:4") gives the queues and their order, as in the
        Java client, because all producers must select the same queue by a hash.
        """
        route = self.by_topic.get(topic)
        if route is None:
            return []
        with_master = {broker.broker_name for broker in route.broker_datas if broker.master is not None}
        if (led := self._leaders.get(topic)) is not None:
            return sorted(MessageQueue(topic, *place) for place, leader in led.items() if leader in with_master)
        writable = [queues for queues in sorted(route.queue_datas) if queues.is_writeable]
        counts = _ordered_counts(route) or {queues.broker_name: queues.write_queue_nums for queues in writable}
        return [
            MessageQueue(topic, broker_name, queue_id)
            for broker_name, count in counts.items()
            if broker_name in with_master
            for queue_id in range(count)
        ]


def _ordered_counts(route: TopicRouteData) -> dict[str, int]:
    counts = {}
    for part in filter(None, (route.order_topic_conf or "").split(";")):
        broker_name, _, count = part.partition(":")
        if count.isdigit():
            counts[broker_name] = int(count)
    # a configuration with more queues than `MAX_QUEUES` is ignored, because it can only be a mistake
    return counts if sum(counts.values()) <= MAX_QUEUES else {}


def _content(route: TopicRouteData | None) -> object:
    if route is None:
        return None
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in route.broker_datas}
    return sorted(route.queue_datas), brokers, route.order_topic_conf, queue_leaders(route.mappings)
