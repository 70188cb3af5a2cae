"""The table of topics' routes, which is refreshed from the name servers.

Three problems make it more complex than a cache:

- *A restarted name server has no routes* until brokers register again, which takes up to 30 s. Meanwhile it reports
  that topics do not exist, and omits brokers from routes. So a known topic counts as deleted only after it was unknown
  for UNKNOWN_TOPIC_GRACE_SECONDS, and the addresses of a missing broker are kept for the same time.
- *Responses may arrive in another order than the requests.* So requests are numbered, and a response is ignored if
  the response to a later request has been used.
- *Errors arrive in bursts.* When a broker dies, every queue on it asks for a fresh route. So requests for the same
  topic are shared (`SharedCalls`), and after errors a topic is requested at most once in REFRESH_GAP_SECONDS.

Readers never wait: all routes are one immutable value (`Routes`). A refresh of many topics replaces this value once.
Code that caches addresses or queues, such as a pull loop, reads the routes again when `version` changes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from rmqd.client.api.remoting_request import SharedCalls
from rmqd.client.routing.routes import MissingBrokers, Routes
from rmqd.errors import BrokerUnknownError, RemotingTimeoutError, RmqdError, RouteNotFoundError
from rmqd.errors.broker_errors import TopicNotExistError
from rmqd.runtime.clock import Clock, wait_within
from rmqd.runtime.plain_text import duration
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic

log = structlog.get_logger(__name__)

AskRoute = Callable[[str], Awaitable[TopicRouteData]]

REFRESH_INTERVAL_SECONDS = 30.0  # Java: pollNameServerInterval
ROUTE_DEADLINE_SECONDS = 6.0  # enough to connect to the name servers and ask them twice
ANXIOUS_SECONDS = 5.0  # refresh interval of a topic while no name server answers, or one of its brokers has no master
REFRESH_GAP_SECONDS = 1.0  # shortest interval between refreshes of one topic after errors
UNKNOWN_TOPIC_FIRST_SECONDS = 0.5
UNKNOWN_TOPIC_MOST_SECONDS = 5.0  # longest refresh interval of a missing topic, which may be created at any time
# After this time a missing topic counts as deleted. Brokers take up to 30 s to register again with a restarted name
# server. Java never notices a deletion: it keeps the route of a missing topic forever.
UNKNOWN_TOPIC_GRACE_SECONDS = 65.0


@dataclass(frozen=True, slots=True)
class _Learned:
    """The result of a request for a topic's route. `order` is the request's number, which increases."""

    topic: str
    order: int
    route: TopicRouteData | None
    error: RmqdError | None = None


class _Watched:
    """The state of a watched topic, such as the time of its next refresh. Times are by the client's monotonic clock."""

    __slots__ = ("asked_at", "changed_at", "due_at", "unknown_delay", "unknown_since", "users")

    def __init__(self, now: float) -> None:
        self.users = 0
        self.due_at = now
        self.asked_at = -REFRESH_GAP_SECONDS
        self.changed_at = float("-inf")  # last change of the readable queues
        self.unknown_since: float | None = None
        self.unknown_delay = UNKNOWN_TOPIC_FIRST_SECONDS


class RouteTable:
    """The routes of all topics in use. Reading never waits; `run` refreshes watched topics every 30 s.

    While no name server answers, the last known routes stay. `route_of(topic)` asks a name server for a route, and
    raises TopicNotExistError if the topic is missing, or another RmqdError if no name server answers.
    """

    def __init__(
        self, route_of: AskRoute, clock: Clock, *, refresh_interval_seconds: float = REFRESH_INTERVAL_SECONDS
    ) -> None:
        self._route_of = route_of
        self._clock = clock
        self._interval = refresh_interval_seconds
        self._routes = Routes()
        self._missing_brokers = MissingBrokers(clock, UNKNOWN_TOPIC_GRACE_SECONDS)
        self._orders: dict[str, int] = {}
        self._watched: dict[str, _Watched] = {}
        self._callbacks: list[Callable[[frozenset[str]], None]] = []
        self._order = itertools.count()
        self._learn = SharedCalls(self._ask)
        self._sooner = asyncio.Event()
        self.problem: str | None = None
        """Why no name server answers, so that routes may be out of date; None if name servers answer."""
        self.version = 0
        """A number that increases with every change of routes or addresses."""

    def on_change(self, callback: Callable[[frozenset[str]], None]) -> None:
        """Register a callback. It is called with the changed topics after each change, and must not block or raise."""
        self._callbacks.append(callback)

    def remove_on_change(self, callback: Callable[[frozenset[str]], None]) -> None:
        self._callbacks.remove(callback)

    def watch(self, topic: str) -> None:
        """Keep a topic's route up to date until the matching `unwatch`. `run` requests a new topic's route at once."""
        watched = self._watched.get(topic)
        if watched is None:
            watched = self._watched[topic] = _Watched(self._clock.monotonic())
            self._sooner.set()
        watched.users += 1

    def unwatch(self, topic: str) -> None:
        """Undo one call of `watch`. When all calls for a topic are undone, its route is removed."""
        watched = self._watched.get(topic)
        if watched is None:
            return
        watched.users -= 1
        if watched.users == 0:
            del self._watched[topic]
            self._orders.pop(topic, None)
            self._routes = self._routes.replaced({topic: None})
            self.version += 1

    def route(self, topic: str) -> TopicRouteData | None:
        """Return a topic's last known route; None if it is not known."""
        return self._routes.by_topic.get(topic)

    def broker_names(self, topic: str) -> list[str]:
        """Return the names of the brokers in a topic's route; empty if the route is not known."""
        route = self.route(topic)
        return [] if route is None else [broker.broker_name for broker in route.broker_datas]

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that consumers read, in RocketMQ's order; empty if the route is not known."""
        return self._routes.readable(topic)

    def writable_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that producers may send to, in RocketMQ's order; empty if the route is not known."""
        return self._routes.writable(topic)

    def problems(self) -> tuple[str, ...]:
        """Return the problems as texts: why routes may be out of date, and which brokers are read-only."""
        topics = self._routes.by_topic.items()
        queues = [one for topic, route in topics if is_retry_topic(topic) for one in route.queue_datas]
        closed = {one.broker_name for one in queues if one.is_readable and not one.is_writeable}
        read_only = [f"broker {name} is read-only, so producers do not use it" for name in sorted(closed)]
        return (*filter(None, [self.problem]), *read_only)

    def known_everywhere_at(self, topic: str) -> float:
        """Return the time (monotonic) when every client knows the last change of a topic's readable queues.

        This assumes that all clients refresh routes as often as this client. The time is -inf if this client saw no
        change; the first known route is not a change.
        """
        watched = self._watched.get(topic)
        return float("-inf") if watched is None else watched.changed_at + self._interval

    def endpoint(self, queue: MessageQueue) -> str:
        """Return the name of the broker to ask about a queue; in a static topic, the queue's present leader."""
        return self._routes.endpoint(queue)

    def by_endpoint(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        """Return the queues grouped by `endpoint`, the broker to ask about them, each group in the given order."""
        brokers: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            brokers.setdefault(self.endpoint(queue), []).append(queue)
        return brokers

    def master(self, broker_name: str) -> str | None:
        """Return the address of a broker's master; None if no known route has it."""
        return self.replicas(broker_name).get(0)

    def address(self, broker_name: str, broker_id: int = 0) -> str | None:
        """Return a replica's address, or another replica's address if it is unknown; None if no replica is known."""
        replicas = self.replicas(broker_name)
        return replicas.get(broker_id) or next(iter(replicas.values()), None)

    def master_for(self, topic: str, broker_name: str) -> str:
        """Return the address of a broker's master. If it is unknown, raises BrokerAwayError, which names `topic`."""
        if (address := self.master(broker_name)) is None:
            raise BrokerUnknownError(topic, broker_name)
        return address

    def address_for(self, queue: MessageQueue) -> str:
        """Return the address to ask about a queue: its broker's master, or else a slave. Raises BrokerAwayError."""
        name = self.endpoint(queue)
        if (address := self.address(name)) is None:
            raise BrokerUnknownError(queue.topic, name)
        return address

    def replicas(self, broker_name: str) -> Mapping[int, str]:
        """Return the last known addresses of a broker by replica id; empty if none is known."""
        known = self._routes.brokers.get(broker_name)
        return self._missing_brokers.replicas(broker_name) if known is None else known

    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """Return the replicas of all brokers in the routes: broker name to replica id (0: master) to address."""
        return self._routes.brokers

    def broker_addresses(self) -> frozenset[str]:
        """Return the addresses of all brokers, including slaves, and brokers that recently left all routes."""
        return frozenset(self.brokers_by_address())

    def brokers_by_address(self) -> dict[str, tuple[str, int]]:
        """Return the broker name and the replica id for each address in `broker_addresses`."""
        missing = ((name, broker.replicas) for name, broker in self._missing_brokers.by_name.items())
        known = (*missing, *self._routes.brokers.items())
        return {at: (name, number) for name, replicas in known for number, at in replicas.items()}

    async def refresh(self, topic: str) -> TopicRouteData:
        """Request a topic's route now. Raises RouteNotFoundError, or RemotingError if no name server answers."""
        learned = await self._learn(topic)
        self._apply([learned])
        if learned.route is not None:
            return learned.route
        if isinstance(learned.error, TopicNotExistError):
            raise RouteNotFoundError(topic) from learned.error
        assert learned.error is not None
        raise learned.error

    async def lookup(self, topic: str) -> TopicRouteData:
        """Return a topic's route if it is known. Otherwise request the route, and raise the errors of `refresh`."""
        return self.route(topic) or await self.refresh(topic)

    def refresh_soon(self, topics: Iterable[str] | None = None) -> None:
        """Let `run` refresh watched topics (None: all) soon. Call it after an error that a stale route may explain.

        It may be called for every error of a burst, because a topic is requested at most once a second.
        """
        now = self._clock.monotonic()
        for topic in list(self._watched) if topics is None else topics:
            if (watched := self._watched.get(topic)) is not None:
                watched.due_at = min(watched.due_at, max(now, watched.asked_at + REFRESH_GAP_SECONDS))
        self._sooner.set()

    async def run(self) -> None:
        """Keep the watched topics up to date. Runs until cancelled."""
        while True:
            self._sooner.clear()
            now = self._clock.monotonic()
            # also refresh topics that are due within the next 5 % of the interval, so that all topics refresh together
            slack = now + self._interval / 20
            if any(watched.due_at <= now for watched in self._watched.values()):
                await self._refresh([topic for topic, watched in self._watched.items() if watched.due_at <= slack])
                continue
            rest = min((watched.due_at - now for watched in self._watched.values()), default=None)
            await wait_within(self._clock, rest, self._sooner.wait())

    async def _refresh(self, topics: list[str]) -> None:
        learned = await asyncio.gather(*map(self._learn, topics))
        # the route of a topic that was unwatched during the requests must not be added again
        self._apply([answer for answer in learned if answer.topic in self._watched])

    async def _ask(self, topic: str) -> _Learned:
        order = next(self._order)
        if (watched := self._watched.get(topic)) is not None:
            watched.asked_at = self._clock.monotonic()
        try:
            async with self._clock.timeout(ROUTE_DEADLINE_SECONDS):
                return _Learned(topic, order, await self._route_of(topic))
        except TimeoutError:
            reason = f"no route of {topic} within {duration(ROUTE_DEADLINE_SECONDS)}"
            return _Learned(topic, order, None, RemotingTimeoutError("name servers", reason))
        except RmqdError as error:
            return _Learned(topic, order, None, error)

    def _apply(self, answers: Iterable[_Learned]) -> None:
        changes: dict[str, TopicRouteData | None] = {}
        for learned in answers:
            self._reschedule(learned)
            if learned.order < self._orders.get(learned.topic, 0):
                continue  # the response to a later request arrived earlier
            if learned.route is not None:
                self._orders[learned.topic] = learned.order
                changes[learned.topic] = learned.route
            elif self._is_gone(learned):
                changes[learned.topic] = None
        before, self._routes = self._routes, self._routes.replaced(changes)
        changed = frozenset(topic for topic in changes if before.differs(self._routes, topic))
        for topic in changed & self._watched.keys():
            if topic in before.by_topic and before.readable(topic) != self._routes.readable(topic):
                self._watched[topic].changed_at = self._clock.monotonic()
        if changed:
            log.info("route.changed", topics=sorted(changed), brokers=sorted(self._routes.brokers))
        is_over = self._missing_brokers.update(before.brokers, self._routes.brokers)
        if changed or is_over or before.brokers != self._routes.brokers:
            self.version += 1
        if changed or is_over:
            for callback in self._callbacks:
                callback(changed)

    def _reschedule(self, learned: _Learned) -> None:
        now = self._clock.monotonic()
        if not isinstance(learned.error, TopicNotExistError):
            self._note_answer(learned.error)
        watched = self._watched.get(learned.topic)
        if watched is None:
            return
        watched.due_at = now + self._interval
        if isinstance(learned.error, TopicNotExistError):
            if watched.unknown_since is None:
                watched.unknown_since = now
                # a missing retry topic is normal for a new group, because brokers create it at the first heartbeat
                level = logging.DEBUG if is_retry_topic(learned.topic) else logging.WARNING
                log.log(level, "route.unknown_topic", topic=learned.topic)
            watched.due_at = now + min(watched.unknown_delay, UNKNOWN_TOPIC_MOST_SECONDS, self._interval)
            watched.unknown_delay *= 2
        elif learned.route is not None:
            watched.unknown_since, watched.unknown_delay = None, UNKNOWN_TOPIC_FIRST_SECONDS
            if any(broker.master is None for broker in learned.route.broker_datas):
                watched.due_at = now + min(ANXIOUS_SECONDS, self._interval)
        else:
            gap = REFRESH_GAP_SECONDS if self.route(learned.topic) is None else ANXIOUS_SECONDS
            watched.due_at = now + min(gap, self._interval)

    def _note_answer(self, error: RmqdError | None) -> None:
        was_reachable, self.problem = self.problem is None, None if error is None else str(error)
        if error is None and not was_reachable:
            log.info("name_server.reachable")
        elif error is not None and was_reachable and not error.is_reported:
            log.warning("name_server.unreachable", reason=str(error), routes_kept=len(self._routes.by_topic))

    def _is_gone(self, learned: _Learned) -> bool:
        if not isinstance(learned.error, TopicNotExistError) or learned.topic not in self._routes.by_topic:
            return False
        watched = self._watched.get(learned.topic)
        if watched is None or watched.unknown_since is None:
            return True
        return self._clock.monotonic() - watched.unknown_since >= UNKNOWN_TOPIC_GRACE_SECONDS
