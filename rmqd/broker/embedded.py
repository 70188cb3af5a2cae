"""EmbeddedRocketMQ: a name server and a broker in this process, for the duration of an `async with` block."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from rmqd.broker.announced import announced_host, joined, numeric_host
from rmqd.broker.controller import BrokerController
from rmqd.broker.journal import Journal, NoJournal
from rmqd.broker.name_server import NameServer
from rmqd.broker.processors.table import broker_processors
from rmqd.broker.server import RemotingServer
from rmqd.broker.settings import BrokerSettings
from rmqd.broker.store.data_dir import DataDir
from rmqd.broker.store.record_log import MemoryRecordLog, RecordLog
from rmqd.clock import Clock, SystemClock
from rmqd.wire.bodies.settings import TopicConfig

LOOPBACK: Final = "127.0.0.1"
VIP_DISTANCE: Final = 2  # the VIP port is the broker's port minus this; clients can be configured to send there


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """The addresses to listen on (port 0: a free port), and the folder for messages (None: in memory).

    If `host` is 0.0.0.0, the broker announces the machine's own address, or `settings.brokerIP1` if set.
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
        """The number of requests that are neither answered nor held."""
        return sum(server.open_requests for server in self.servers)


@contextlib.asynccontextmanager
async def embedded_rocketmq(
    options: EmbeddedOptions | None = None, clock: Clock | None = None
) -> AsyncIterator[EmbeddedRocketMQ]:
    """Run both servers until the end of the block.

    Raises OSError if an address cannot be used for listening, and StorageError if the data dir cannot be used.
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
        announced = announced_host(host, options.settings.brokerIP1)
        port = await _listen(broker_server, host, options.broker_port)
        if options.broker_port > VIP_DISTANCE:  # not for port 0: the port below may belong to another process
            await _listen(broker_server, host, options.broker_port - VIP_DISTANCE)
        settings = replace(options.settings, brokerIP1=announced)
        broker = BrokerController(settings, clock or SystemClock(), log, journal, joined(announced, port))
        for processors in broker_processors(broker):
            broker_server.serve(processors)
        for topic, queues in options.topics.items():
            if broker.topics.get(topic) is None:
                broker.topics.put(TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues))
        name_server.serve(NameServer(broker).processors())
        name_port = await _listen(name_server, host, options.port)
        running = asyncio.create_task(broker.run(), name="broker")
        try:
            yield EmbeddedRocketMQ(joined(announced, name_port), broker, (broker_server, name_server))
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
        raise OSError(error.errno, f"the {server.name} cannot listen at {joined(host, port)}: {reason}") from error
