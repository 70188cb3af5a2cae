"""Name servers and brokers: `rmqd.broker`'s own rooms, each process on a host that can be killed and started again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from rmqd.broker.channel import Channel, Processors
from rmqd.broker.controller import BrokerController
from rmqd.broker.processors.table import broker_processors
from rmqd.broker.reply import Refusal, Reply
from rmqd.broker.server import RemotingServer
from rmqd.broker.settings import BrokerSettings
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.route import BrokerData, QueueData, TopicRouteData
from rmqd.wire.bodies.settings import TopicConfig
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.name_server import GetRouteInfoRequestHeader
from tests.simulation.disk import Disk
from tests.simulation.loop import Host, LoopClock, SimulatedLoop

BROKER_PORT = 10911
NAME_SERVER_PORT = 9876
FLUSH_SECONDS = 5.0
"""Java: flushConsumerOffsetInterval."""


class Broker:
    """A broker and its disk, over any number of its processes' lives."""

    def __init__(self, loop: SimulatedLoop, name: str, ip: str) -> None:
        self.name = name
        self.ip = ip
        self.disk = Disk()
        self.controller: BrokerController | None = None
        self.host: Host
        self._loop = loop
        self._lives = 0

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"{self.ip}:{BROKER_PORT}"

    @property
    def is_up(self) -> bool:
        """Whether its process lives."""
        return self.controller is not None

    async def start(self) -> None:
        """Begin a life with what is on the disk."""
        self._lives += 1
        self.host = Host(self._loop, f"{self.name}/{self._lives}")
        await self.host.spawn(self._start())

    async def _start(self) -> None:
        settings = replace(BrokerSettings(), brokerName=self.name, brokerIP1=self.ip)
        controller = BrokerController(settings, LoopClock(), self.disk, self.disk, self.address)
        server = RemotingServer(self.name)
        for processors in broker_processors(controller):
            server.serve(processors)
        await server.listen(self.ip, BROKER_PORT)
        self._running = [asyncio.create_task(controller.run()), asyncio.create_task(self._flush())]
        self.controller = controller

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self.disk.flush()

    def kill(self) -> None:
        """End the process at once; the offsets that were committed since the last flush are lost."""
        self.controller = None
        self.host.kill()
        self.disk.crash()

    def set_queues(self, topic: str, queues: int) -> None:
        """Create a topic, or change its number of queues."""
        assert self.controller is not None
        self.controller.topics.put(TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues))


class NameServer:
    """A name server, which names the brokers that live."""

    def __init__(self, loop: SimulatedLoop, name: str, ip: str, brokers: list[Broker]) -> None:
        self.host = Host(loop, name)
        self.address = f"{ip}:{NAME_SERVER_PORT}"
        self._ip = ip
        self._brokers = brokers

    async def start(self) -> None:
        """Listen."""
        await self.host.spawn(self._start())

    async def _start(self) -> None:
        server = RemotingServer(self.host.name)
        server.serve(self._processors())
        await server.listen(self._ip, NAME_SERVER_PORT)

    def _processors(self) -> Processors:
        return {RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route}

    def _route(self, channel: Channel, request: RemotingCommand) -> Reply:
        topic = GetRouteInfoRequestHeader.from_ext_fields(request.ext_fields).topic
        queues, brokers = [], []
        for broker in self._brokers:
            config = None if broker.controller is None else broker.controller.topics.get(topic)
            if config is not None:
                queues.append(QueueData(broker.name, config.read_queue_nums, config.write_queue_nums, config.perm, 0))
                brokers.append(BrokerData("DefaultCluster", broker.name, {0: broker.address}))
        if not queues:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}")
        return Reply(body=TopicRouteData(tuple(queues), tuple(brokers), None).to_json(strict=True))
