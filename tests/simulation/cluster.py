"""Brokers: `rmqd.broker`'s own parts, each process on a host that can be killed and started again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.controller import BrokerController
from rmqd.broker.embedded_rocketmq import PROCESSORS
from rmqd.broker.peer_channel import Answer, Channel, Processor, Refusal, RemotingServer
from rmqd.broker.processors.assignment_processor import QueryAssignmentProcessor
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.config_bodies import SetMessageRequestModeRequestBody, TopicConfig
from rmqd.wire.bodies.pop_bodies import MessageRequestMode
from rmqd.wire.bodies.route_data import PERM_READ, PERM_WRITE
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.simulation.commit_threads import CommitThreads
from tests.simulation.disk import Disk
from tests.simulation.loop import Host, LoopClock, SimulatedLoop
from tests.simulation.name_servers import REGISTER_SECONDS, NameServer, Registration

BROKER_PORT = 10911
READ_AND_WRITE = PERM_READ | PERM_WRITE
FLUSH_SECONDS = 5.0
"""Java: flushConsumerOffsetInterval."""


class ClusterDivision(QueryAssignmentProcessor):
    """Divides the queues of all brokers with a live replica. A Java broker learns these from the name server."""

    def __init__(self, controller: BrokerController, brokers: list[Broker]) -> None:
        super().__init__(controller)
        self._brokers = brokers

    def queues_of(self, topic: str) -> list[MessageQueue] | None:
        replicas = (one.controller or one.stand_in() for one in self._brokers)
        own = (QueryAssignmentProcessor(one) for one in replicas if one is not None)
        found = [queue for processor in own for queue in processor.queues_of(topic) or ()]
        return sorted(found) or None


class Broker:
    """A broker and its disk, across restarts of its process."""

    def __init__(self, loop: SimulatedLoop, name: str, ip: str, name_servers: Sequence[NameServer]) -> None:
        self.name = name
        self.ip = ip
        self.disk = Disk()
        self.disk.on_topic = self._register_soon
        self.controller: BrokerController | None = None
        self.host: Host
        self.commits = CommitThreads(random.Random(name), late=0.0)
        self.neighbours: list[Broker] = []
        """All brokers of the cluster, including this one."""
        self.stand_in: Callable[[], BrokerController | None] = lambda: None
        """Returns the controller of its slave, if the slave is running."""
        self.heartbeat_seconds = 0.0
        """How long the broker takes to process a heartbeat. Other requests are answered meanwhile."""
        self.refused: set[RequestCode] = set()
        """The requests that the broker refuses as busy."""
        self._loop = loop
        self._name_servers = name_servers
        self._lives = 0

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{self.ip}:{BROKER_PORT}"

    @property
    def is_up(self) -> bool:
        """Whether the process is running."""
        return self.controller is not None

    async def start(self) -> None:
        """Start a process with the data on the disk."""
        self._lives += 1
        self.host = Host(self._loop, f"{self.name}/{self._lives}")
        await self.host.spawn(self._start())

    async def _start(self) -> None:
        settings = replace(BrokerSettings(), brokerName=self.name, brokerIP1=self.ip)
        controller = BrokerController(settings, LoopClock(), self.disk, self.disk, self.address)
        server = RemotingServer(self.name)
        division = {RequestCode.QUERY_ASSIGNMENT: ClusterDivision(controller, self.neighbours).assignment}
        for kind in PROCESSORS:
            served = {code: division.get(code, processor) for code, processor in kind(controller).processors().items()}
            if (commit := served.get(RequestCode.UPDATE_CONSUMER_OFFSET)) is not None:
                served[RequestCode.UPDATE_CONSUMER_OFFSET] = self.commits.before(commit, controller.offsets)
            if (pull := served.get(RequestCode.PULL_MESSAGE)) is not None:
                served[RequestCode.PULL_MESSAGE] = self.commits.before_pull(pull)
            if (heartbeat := served.get(RequestCode.HEART_BEAT)) is not None:
                served[RequestCode.HEART_BEAT] = partial(self._heartbeat, heartbeat)
            server.serve({code: self._unless_busy(one) for code, one in served.items()})
        await server.listen(self.ip, BROKER_PORT)
        self.controller = controller
        self._running = [asyncio.create_task(work) for work in (controller.run(), self._flush(), self._register())]

    def _heartbeat(
        self, heartbeat: Processor, channel: Channel, request: RemotingCommand
    ) -> Answer | Awaitable[Answer]:
        if not self.heartbeat_seconds:
            return heartbeat(channel, request)
        return self._heartbeat_later(heartbeat, channel, request)

    async def _heartbeat_later(self, heartbeat: Processor, channel: Channel, request: RemotingCommand) -> Answer:
        """Process a heartbeat later: RocketMQ has separate threads for heartbeats."""
        await asyncio.sleep(self.heartbeat_seconds)
        answer = None if channel.closed else heartbeat(channel, request)
        return await answer if isinstance(answer, Awaitable) else answer

    def _unless_busy(self, processor: Processor) -> Processor:
        def process(channel: Channel, request: RemotingCommand) -> Answer | Awaitable[Answer]:
            if request.code in self.refused:
                raise Refusal(ResponseCode.SYSTEM_BUSY, "the broker is busy")
            return processor(channel, request)

        return process

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self.disk.flush()

    async def _register(self) -> None:
        while True:
            self._register_once()
            await asyncio.sleep(REGISTER_SECONDS)

    def _register_soon(self) -> None:
        """Register again, because a topic was stored."""
        self._loop.call_soon(self._register_once)

    def _register_once(self) -> None:
        if self.controller is not None:
            own = Registration(self.name, self.host, self.address, self.controller.topics.all())
            for name_server in self._name_servers:
                name_server.register(own)

    def kill(self) -> None:
        """End the process at once. Offsets committed since the last flush are lost."""
        self.controller = None
        self.host.kill()
        self.disk.crash()

    def move(self) -> None:
        """Let the next process start at another address."""
        *net, moves, number = self.ip.split(".")
        self.ip = ".".join((*net, str(int(moves) + 1), number))

    def set_mode(self, topic: str, group: str, mode: MessageRequestMode, share_queues: int) -> None:
        """Let a group pull a topic, or pop it: all queues (0), or its share and those of so many other members."""
        assert self.controller is not None
        self.controller.groups.set_request_mode(SetMessageRequestModeRequestBody(topic, group, mode, share_queues))

    def set_topic(self, topic: str, *, read: int, write: int, perm: int = READ_AND_WRITE) -> None:
        """Create a topic, or change its queue counts and permissions."""
        assert self.controller is not None
        config = TopicConfig(topic_name=topic, read_queue_nums=read, write_queue_nums=write, perm=perm)
        self.controller.topics.put(config)
