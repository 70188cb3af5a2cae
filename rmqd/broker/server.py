"""The server side of the remoting protocol: connections, requests and their processors, responses in one write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from rmqd.broker.channel import Answer, Channel, Processor, Processors
from rmqd.broker.reply import Refusal, Reply
from rmqd.codes import ResponseCode
from rmqd.errors import ProtocolError, StorageError
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
        """Note how many bytes of an incomplete frame a channel holds. `begins`: the previous frame has just ended.

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
