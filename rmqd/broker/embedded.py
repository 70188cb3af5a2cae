"""EmbeddedRocketMQ: a name server and a broker in this process, for as long as an `async with` block lasts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rmqd.broker.controller import BrokerController
from rmqd.broker.journal import Journal, NoJournal
from rmqd.broker.name_server import NameServer
from rmqd.broker.processors.table import broker_processors
from rmqd.broker.server import RemotingServer
from rmqd.broker.settings import BrokerSettings
from rmqd.clock import Clock, SystemClock
from rmqd.wire.settings import TopicConfig

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """Where to listen (0: a free port), and where to keep messages (None: in memory)."""

    host: str = LOOPBACK
    port: int = 0
    broker_port: int = 0
    data_dir: Path | None = None
    settings: BrokerSettings = field(default_factory=BrokerSettings)
    topics: Mapping[str, int] = field(default_factory=dict)
    """Topics to make, with their numbers of queues, unless they exist."""


@dataclass(frozen=True, slots=True)
class EmbeddedRocketMQ:
    """A running name server and broker. `nameserver` is what clients want."""

    nameserver: str
    broker: BrokerController
    servers: tuple[RemotingServer, ...]

    @property
    def open_requests(self) -> int:
        """Requests that came and are neither answered nor held."""
        return sum(server.open_requests for server in self.servers)


@contextlib.asynccontextmanager
async def embedded_rocketmq(
    options: EmbeddedOptions | None = None, clock: Clock | None = None
) -> AsyncIterator[EmbeddedRocketMQ]:
    """Run both until the end of the block. Raises OSError where an address cannot be listened at."""
    options = options or EmbeddedOptions()
    journal: Journal = NoJournal()
    broker_server, name_server = RemotingServer("broker"), RemotingServer("name server")
    try:
        port = await broker_server.listen(options.host, options.broker_port)
        broker = BrokerController(options.settings, clock or SystemClock(), journal, f"{options.host}:{port}")
        for processors in broker_processors(broker):
            broker_server.serve(processors)
        for topic, queues in options.topics.items():
            if broker.topics.get(topic) is None:
                broker.topics.put(TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues))
        name_server.serve(NameServer(broker).processors())
        name_port = await name_server.listen(options.host, options.port)
        running = asyncio.create_task(broker.run(), name="broker")
        try:
            yield EmbeddedRocketMQ(f"{options.host}:{name_port}", broker, (broker_server, name_server))
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
    finally:
        await name_server.close()
        await broker_server.close()
