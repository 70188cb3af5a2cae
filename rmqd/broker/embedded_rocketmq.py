"""EmbeddedRocketMQ: a name server and a broker in this process, for the duration of an `async with` block.

Its server reads requests from connections, gives them to processors, and writes all responses of one turn at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import structlog

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.controller import BrokerController
from rmqd.broker.name_server import NameServer
from rmqd.broker.peer_channel import Answer, Channel, Processor, Processors, Refusal, Reply
from rmqd.broker.processors.processor_table import broker_processors
from rmqd.broker.store.data_dir import DataDir
from rmqd.broker.store.journal import Journal, MemoryRecordLog, NoJournal, RecordLog
from rmqd.codes import ResponseCode
from rmqd.errors import ProtocolError, StorageError
from rmqd.runtime.clock import Clock, SystemClock
from rmqd.wire.bodies.config_bodies import TopicConfig
from rmqd.wire.command import RemotingCommand

log = structlog.get_logger(__name__)

IDLE_SECONDS: Final = 120.0  # Java: serverChannelMaxIdleTimeSeconds
HALF_FRAME_SECONDS: Final = 30.0
HALF_FRAMES_BYTES: Final = 64 * 1024 * 1024
MAX_CONNECTIONS: Final = 1000
_IDLE_SCAN_SECONDS: Final = 10.0


class RemotingServer:
    """Serves one address. `before_flush` is called before the responses of a turn of the loop are sent.

    If it raises StorageError, all these responses become SERVICE_NOT_AVAILABLE.

    `open_requests` counts requests that are neither answered nor held by a processor that returned None.
    """

    def __init__(self, name: str, before_flush: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.channels: set[Channel] = set()
        self.open_requests = 0
        self._half_frames: dict[Channel, None] = {}  # in the order of their first bytes
        self._half_frames_bytes = 0
        self._processors: dict[int, Processor] = {}
        self._before_flush = before_flush
        self._dirty: list[Channel] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.get_running_loop()
        self._idle_scan: asyncio.TimerHandle | None = None

    def serve(self, processors: Processors) -> None:
        """Add processors by request code. Raises ValueError if a code has a processor already."""
        for code, processor in processors.items():
            if int(code) in self._processors:
                raise ValueError(f"two processors for {code.name}")
            self._processors[int(code)] = processor

    async def listen(self, host: str, port: int) -> int:
        """Listen; on a free port for port 0. Returns the port. Raises OSError."""
        server = await self._loop.create_server(lambda: Channel(self), host, port)
        self._servers.append(server)
        if self._idle_scan is None:
            self._idle_scan = self._loop.call_later(_IDLE_SCAN_SECONDS, self._close_idle)
        chosen: int = server.sockets[0].getsockname()[1]
        return chosen

    async def close(self) -> None:
        """Stop listening, and close every connection."""
        if self._idle_scan is not None:
            self._idle_scan.cancel()
        for server in self._servers:
            server.close()
        self.flush()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for channel in list(self.channels):
            channel.close()
        for server in self._servers:
            await server.wait_closed()

    def now(self) -> float:
        """Return the loop's time in seconds."""
        return self._loop.time()

    def opened(self, channel: Channel) -> None:
        """Called for a new connection. Connections above the limit are closed."""
        self.channels.add(channel)
        if len(self.channels) > MAX_CONNECTIONS:
            log.warning("broker.connections_full", server=self.name, limit=MAX_CONNECTIONS)
            channel.abort()

    def lost(self, channel: Channel) -> None:
        """Called when a connection has ended."""
        self.channels.discard(channel)
        self.half_frame(channel, 0, begins=False)

    def half_frame(self, channel: Channel, held_bytes: int, *, begins: bool) -> None:
        """Record how many bytes of an incomplete frame a channel holds. `begins`: the previous frame has just ended.

        If all channels together hold too much, the ones with the oldest frames are closed. A frame that a client sends
        at once is complete soon.
        """
        self._half_frames_bytes += held_bytes - channel.half_frame_bytes
        if begins or not channel.half_frame_bytes:
            self._half_frames.pop(channel, None)
            channel.half_frame_since = self.now()
        channel.half_frame_bytes = held_bytes
        if held_bytes:
            self._half_frames[channel] = None
        else:
            self._half_frames.pop(channel, None)
        while self._half_frames_bytes > HALF_FRAMES_BYTES:
            self._give_up(next(iter(self._half_frames)))

    def _give_up(self, channel: Channel) -> None:
        log.warning("broker.frame_unfinished", client=channel.address, bytes=channel.half_frame_bytes)
        self.half_frame(channel, 0, begins=False)
        channel.abort()

    def flush_soon(self, channel: Channel) -> None:
        """Send the channel's frames at the end of this turn of the event loop."""
        if not self._dirty:
            self._loop.call_soon(self.flush)
        self._dirty.append(channel)

    def dispatch(self, channel: Channel, request: RemotingCommand) -> None:
        """Answer a request with the processor of its code."""
        processor = self._processors.get(request.code)
        if processor is None:
            remark = f" request type {request.code} not supported"
            channel.reply(request, Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        self.answer(channel, request, processor)

    def answer(self, channel: Channel, request: RemotingCommand, processor: Processor) -> None:
        """Answer a request with this processor."""
        try:
            answer = processor(channel, request)
        except Exception as error:  # noqa: BLE001 - like the real broker, which answers with the exception's text
            channel.reply(request, self._failure(request, error))
            return
        if answer is None:
            return
        if isinstance(answer, Reply):
            channel.reply(request, answer)
            return
        task = self._loop.create_task(self._answer_later(channel, request, answer))
        self.open_requests += 1
        self._tasks.add(task)
        task.add_done_callback(self._answered)

    async def _answer_later(self, channel: Channel, request: RemotingCommand, answer: Awaitable[Answer]) -> None:
        try:
            reply = await answer
        except Exception as error:  # noqa: BLE001 - as above
            reply = self._failure(request, error)
        if reply is not None:
            channel.reply(request, reply)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self.open_requests -= 1
        self._tasks.discard(task)

    def _failure(self, request: RemotingCommand, error: Exception) -> Reply:
        if isinstance(error, Refusal):
            return Reply(error.code, error.remark, error.ext_fields)
        if not isinstance(error, ProtocolError):
            log.error("broker.request_failed", server=self.name, code=request.code, exc_info=error)
        return Reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def flush(self) -> None:
        """Send the queued frames. Called at the end of a turn, and before a connection is closed."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, []
        try:
            self._before_flush()
        except StorageError as error:
            for channel in dirty:
                channel.refuse(Reply(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)))
        for channel in dirty:
            channel.flush()

    def _close_idle(self) -> None:
        for channel in list(self._half_frames):
            if self.now() - channel.half_frame_since > HALF_FRAME_SECONDS:
                self._give_up(channel)
        for channel in list(self.channels):
            if self.now() - channel.last_heard > IDLE_SECONDS:
                channel.close()
        self._idle_scan = self._loop.call_later(_IDLE_SCAN_SECONDS, self._close_idle)


def numeric_host(host: str) -> str:
    """Return a host's IP address, IPv4 if it has one. Raises OSError if the name is unknown."""
    if host in ("", "*"):
        return "0.0.0.0"
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = [(family != socket.AF_INET, str(address[0])) for family, _, _, _, address in found]
    return min(addresses, key=lambda one: one[0])[1]


def announced_host(listened: str, broker_ip1: str) -> str:
    """Return the host to announce: `broker_ip1` if set, the machine's own address for 0.0.0.0, else `listened`."""
    if broker_ip1:
        return broker_ip1
    address = ipaddress.ip_address(listened)
    return _own_host(address.version) if address.is_unspecified else listened


def joined(host: str, port: int) -> str:
    """Return host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_host(version: int) -> str:
    """Return this machine's address on the default route; loopback if it is offline.

    No packet is sent, because connecting a datagram socket only asks the kernel for a route. The peers are addresses
    that are reserved for documentation.
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
