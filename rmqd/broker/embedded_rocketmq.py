"""EmbeddedRocketMQ: a name server and a broker in this process, for the duration of an `async with` block."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.controller import BrokerController
from rmqd.broker.name_server import NameServer
from rmqd.broker.peer_channel import RemotingServer
from rmqd.broker.processors.ack_processor import AckProcessor
from rmqd.broker.processors.assignment_processor import QueryAssignmentProcessor
from rmqd.broker.processors.client_processor import ClientProcessor
from rmqd.broker.processors.group_processor import GroupProcessor
from rmqd.broker.processors.lite_processor import LiteProcessor
from rmqd.broker.processors.pop_polling import PopPollingProcessor
from rmqd.broker.processors.pop_processor import PopMessageProcessor
from rmqd.broker.processors.pull_processor import PullMessageProcessor
from rmqd.broker.processors.query_processor import QueryProcessor
from rmqd.broker.processors.send_processor import SendProcessor
from rmqd.broker.processors.stats_processor import StatsProcessor
from rmqd.broker.processors.topic_processor import QueueEndsProcessor, TopicProcessor
from rmqd.broker.store.data_dir import DataDir
from rmqd.broker.store.journal import Journal, MemoryRecordLog, NoJournal, RecordLog
from rmqd.runtime.clock import Clock, SystemClock
from rmqd.wire.bodies.config_bodies import TopicConfig
from rmqd.wire.messages.message_id import host_port


def numeric_host(host: str) -> str:
    """Return a host's IP address, preferably IPv4; 0.0.0.0 for "" and "*". Raises OSError if the host is unknown."""
    if host in ("", "*"):
        return "0.0.0.0"
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = [(family != socket.AF_INET, str(address[0])) for family, _, _, _, address in found]
    return min(addresses, key=lambda one: one[0])[1]


def host_for_clients(listened: str, broker_ip1: str) -> str:
    """Return the host for clients: `broker_ip1` if set, this machine's address for 0.0.0.0, else `listened`."""
    if broker_ip1:
        return broker_ip1
    address = ipaddress.ip_address(listened)
    return _own_host(address.version) if address.is_unspecified else listened


def _own_host(version: int) -> str:
    """Return this machine's address on the default route; loopback if it is offline.

    Connecting a datagram socket asks the kernel for a route, and sends no packet. The peer addresses are reserved for
    documentation.
    """
    family, anywhere, loopback = (
        (socket.AF_INET6, "2001:db8::1", "::1") if version == 6 else (socket.AF_INET, "192.0.2.1", "127.0.0.1")
    )
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((anywhere, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return loopback


PROCESSORS: Final = (
    AckProcessor,
    ClientProcessor,
    GroupProcessor,
    LiteProcessor,
    PopMessageProcessor,
    PopPollingProcessor,
    PullMessageProcessor,
    QueryAssignmentProcessor,
    QueryProcessor,
    QueueEndsProcessor,
    SendProcessor,
    StatsProcessor,
    TopicProcessor,
)
LOOPBACK: Final = "127.0.0.1"
VIP_DISTANCE: Final = 2  # RocketMQ clients can be configured to use the VIP port: the broker's port minus 2


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """The options of `embedded_rocketmq`. `port` is the name server's port. Port 0 chooses a free port.

    Clients connect to `settings.brokerIP1` if set, else to `host`, or to this machine's address if `host` is 0.0.0.0.
    If `data_dir` is None, messages and all other state are only in memory.
    """

    host: str = LOOPBACK
    port: int = 0
    broker_port: int = 0
    data_dir: Path | None = None
    settings: BrokerSettings = field(default_factory=BrokerSettings)
    topics: Mapping[str, int] = field(default_factory=dict)
    """Topics to create if they are missing, with their numbers of queues."""


@dataclass(frozen=True, slots=True)
class EmbeddedRocketMQ:
    """A running name server and broker. `nameserver` is the address for clients."""

    nameserver: str
    broker: BrokerController
    servers: tuple[RemotingServer, ...]

    @property
    def open_requests(self) -> int:
        """The number of requests that processors are working on, without held requests."""
        return sum(server.open_requests for server in self.servers)


@contextlib.asynccontextmanager
async def embedded_rocketmq(
    options: EmbeddedOptions | None = None, clock: Clock | None = None
) -> AsyncIterator[EmbeddedRocketMQ]:
    """Run a name server and a broker until the end of the `async with` block.

    Raises OSError if a server cannot listen on its address, and StorageError if the data dir cannot be used.
    """
    options = options or EmbeddedOptions()
    if options.data_dir is None:
        async with _running(options, clock, MemoryRecordLog(), NoJournal(), lambda: None) as rocketmq:
            yield rocketmq
    else:
        with contextlib.closing(DataDir(options.data_dir)) as data_dir:
            async with _running(options, clock, data_dir, data_dir, data_dir.commit) as rocketmq:
                yield rocketmq


@contextlib.asynccontextmanager
async def _running(
    options: EmbeddedOptions, clock: Clock | None, log: RecordLog, journal: Journal, commit: Callable[[], None]
) -> AsyncIterator[EmbeddedRocketMQ]:
    broker_server, name_server = RemotingServer("broker", commit), RemotingServer("name server", commit)
    try:
        host = numeric_host(options.host)
        announced = host_for_clients(host, options.settings.brokerIP1)
        port = await _listen(broker_server, host, options.broker_port)
        if options.broker_port > VIP_DISTANCE:  # not for port 0 (a free port): the port two below may be in use
            await _listen(broker_server, host, options.broker_port - VIP_DISTANCE)
        settings = replace(options.settings, brokerIP1=announced)
        broker = BrokerController(settings, clock or SystemClock(), log, journal, host_port(announced, port))
        for kind in PROCESSORS:
            broker_server.serve(kind(broker).processors())
        for topic, queues in options.topics.items():
            if broker.topics.get(topic) is None:
                broker.topics.put(TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues))
        name_server.serve(NameServer(broker).processors())
        name_port = await _listen(name_server, host, options.port)
        running = asyncio.create_task(broker.run(), name="broker")
        try:
            yield EmbeddedRocketMQ(host_port(announced, name_port), broker, (broker_server, name_server))
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
    finally:
        await name_server.close()
        await broker_server.close()


async def _listen(server: RemotingServer, host: str, port: int) -> int:
    try:
        return await server.listen(host, port)
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise OSError(error.errno, f"the {server.name} cannot listen at {host_port(host, port)}: {reason}") from error
