"""Name servers with the registrations of brokers, which may be incomplete or old."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from rmqd.broker.peer_channel import Channel, Refusal, RemotingServer, Reply
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.route_data import BrokerData, QueueData, TopicRouteData
from rmqd.wire.headers.topic_headers import GetRouteInfoRequestHeader
from tests.simulation.loop import Host, SimulatedLoop

if TYPE_CHECKING:
    from collections.abc import Collection

    from rmqd.wire.bodies.config_bodies import TopicConfig
    from rmqd.wire.command import RemotingCommand

NAME_SERVER_PORT: Final = 9876
REGISTER_SECONDS: Final = 30.0
"""Java: registerNameServerPeriod."""
EXPIRED_SECONDS: Final = 120.0
"""Java: brokerChannelExpiredTime."""


class Registration(NamedTuple):
    """A broker's registration."""

    broker: str
    host: Host
    address: str
    topics: dict[str, TopicConfig]
    broker_id: int = 0
    """The id of the replica; 0 is the master."""


class NameServer:
    """A name server, across restarts of its process. It keeps nothing on disk."""

    def __init__(self, loop: SimulatedLoop, name: str, ip: str) -> None:
        self.name = name
        self.address = f"{ip}:{NAME_SERVER_PORT}"
        self.host = Host(loop, name)
        self.deaf_to: set[str] = set()
        """Brokers, by name, whose registrations and disconnections it does not notice."""
        self.is_removed = False
        """Whether it never starts again."""
        self.late_seconds = 0.0
        """How long it takes to respond."""
        self._ip = ip
        self._loop = loop
        self._lives = 0
        self._known: dict[tuple[str, int], tuple[Registration, float]] = {}

    @property
    def is_up(self) -> bool:
        """Whether the process is running."""
        return self._lives > 0 and not self.host.is_dead

    def names(self, brokers: Collection[str]) -> bool:
        """Whether its routes contain one of these brokers, with a master or without."""
        return any(one.broker in brokers for one in self._present())

    async def start(self) -> None:
        """Start a process that knows no broker yet."""
        self._lives += 1
        self._known.clear()
        self.host = Host(self._loop, f"{self.name}/{self._lives}")
        await self.host.spawn(self._start())

    def kill(self) -> None:
        """End the process at once."""
        self.host.kill()

    def register(self, registration: Registration) -> None:
        """Receive a broker's registration, if it arrives."""
        apart = self._loop.network.are_apart(self.host, registration.host)
        if self.is_up and not self.host.is_paused and not apart and registration.broker not in self.deaf_to:
            self._known[registration.broker, registration.broker_id] = registration, self._loop.now

    async def _start(self) -> None:
        server = RemotingServer(self.name)
        server.serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route})
        await server.listen(self._ip, NAME_SERVER_PORT)

    async def _route(self, channel: Channel, request: RemotingCommand) -> Reply:
        await asyncio.sleep(self.late_seconds)
        topic = GetRouteInfoRequestHeader.from_ext_fields(request.ext_fields).topic
        queues, brokers = [], []
        for name, replicas in itertools.groupby(self._present(), key=lambda one: one.broker):
            first, *others = replicas
            if (config := first.topics.get(topic)) is not None:
                queues.append(QueueData(name, config.read_queue_nums, config.write_queue_nums, config.perm, 0))
                addresses = {one.broker_id: one.address for one in (first, *others)}
                brokers.append(BrokerData("DefaultCluster", name, addresses))
        if not queues:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}")
        return Reply(body=TopicRouteData(tuple(queues), tuple(brokers), None).to_json(strict=True))

    def _present(self) -> list[Registration]:
        """Return the registrations of live brokers by their names, each master before its slave."""
        for key, (one, at) in list(self._known.items()):
            is_gone = one.host.is_dead and one.broker not in self.deaf_to
            if is_gone or at + EXPIRED_SECONDS < self._loop.now:
                del self._known[key]
        return [one for _, (one, _) in sorted(self._known.items())]
