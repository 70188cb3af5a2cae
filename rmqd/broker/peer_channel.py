"""The server side of remoting: RemotingServer, and Channel for one client's connection.

The server passes requests to processors, and writes all responses of one turn of the event loop at once. A processor
returns a Reply, raises Refusal, or returns None and replies later. A channel can also send requests to its client.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, cast

import structlog

from rmqd.codes import LanguageCode, RequestCode, ResponseCode
from rmqd.errors import ProtocolError, RemotingClosedError, RemotingTimeoutError, RmqdError, StorageError
from rmqd.runtime.plain_text import duration
from rmqd.wire.command import ONEWAY_FLAG, RESPONSE_FLAG, FrameDecoder, RemotingCommand, decode_command, encode_command
from rmqd.wire.messages.message_id import host_port

SEE_FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""RocketMQ's servers append this text to many error remarks."""

NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})

NO_CODE: Final = "not set any response code"  # the remark of some successful responses, whose code Java forgets to set


class Reply(NamedTuple):
    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    ext_fields: Mapping[str, str] = NO_FIELDS
    body: bytes = b""


class Refusal(RmqdError):
    """Raised by a processor to answer with an error code. `remark` is the text of RocketMQ's broker."""

    def __init__(self, code: ResponseCode, remark: str, ext_fields: Mapping[str, str] = NO_FIELDS) -> None:
        super().__init__(f"{code.name}: {remark}")
        self.code = code
        self.remark = remark
        self.ext_fields = ext_fields


@contextlib.contextmanager
def set_refusal_fields(ext_fields: Mapping[str, str]) -> Iterator[None]:
    """Set the ext fields of each Refusal in the block. Java's error responses have the response header's numbers."""
    try:
        yield
    except Refusal as refusal:
        raise Refusal(refusal.code, refusal.remark, ext_fields) from None


log = structlog.get_logger(__name__)

VERSION: Final = 513  # 5.5.0: this broker behaves like that version
LANGUAGE: Final = LanguageCode.JAVA  # RocketMQ's servers send this language, and clients expect it
_opaques = itertools.count()
IDLE_SECONDS: Final = 120.0  # Java: serverChannelMaxIdleTimeSeconds
HALF_FRAME_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 3.0
HALF_FRAMES_BYTES: Final = 64 * 1024 * 1024
MAX_CONNECTIONS: Final = 1000
_IDLE_SCAN_SECONDS: Final = 10.0


class Channel(asyncio.Protocol):
    """A client's connection, created by RemotingServer. `address` is the client's "ip:port"."""

    def __init__(self, server: RemotingServer) -> None:
        self.address = ""
        self.closed = False
        self.last_heard = 0.0  # loop time
        self.half_frame_bytes = 0
        self.half_frame_since = 0.0  # loop time
        self._server = server
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._calls: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._on_close: list[Callable[[Channel], None]] = []

    def __repr__(self) -> str:
        return f"<Channel {self.address}{' closed' if self.closed else ''}>"

    def on_close(self, callback: Callable[[Channel], None]) -> None:
        """Call `callback` when the connection ends. A callback that is added twice is called once."""
        if callback not in self._on_close:
            self._on_close.append(callback)

    def reply(self, request: RemotingCommand, reply: Reply) -> None:
        """Answer a request. One-way requests get no response."""
        if request.is_oneway or self.closed:
            return
        self.write(_response(request.opaque, reply))

    def answer(self, request: RemotingCommand, processor: Processor) -> None:
        """Answer a held request with this processor, as if the request arrived now."""
        self._server.answer(self, request, processor)

    def send_oneway(self, code: int, ext_fields: Mapping[str, str] = NO_FIELDS, body: bytes = b"") -> None:
        self.write(self._request(code, next(_opaques) & 0x7FFFFFFF, ext_fields, body, ONEWAY_FLAG))

    async def call(
        self, code: int, ext_fields: Mapping[str, str], body: bytes = b"", *, timeout_seconds: float
    ) -> RemotingCommand:
        """Send a request to the client, and wait for the response.

        Raises RemotingTimeoutError, or RemotingClosedError if the connection ends.
        """
        if self.closed:
            raise RemotingClosedError(self.address, "the client has closed the connection")
        opaque = next(_opaques) & 0x7FFFFFFF
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._calls[opaque] = future
        self.write(self._request(code, opaque, ext_fields, body, 0))
        try:
            async with asyncio.timeout(timeout_seconds):
                return await future
        except TimeoutError:
            reason = f"no answer to request {code} in {duration(timeout_seconds)}"
            raise RemotingTimeoutError(self.address, reason) from None
        finally:
            del self._calls[opaque]

    def write(self, frame: bytes) -> None:
        """Queue a frame. It is sent at the end of this turn of the loop, after the messages of the turn are durable."""
        if not self._out:
            self._server.flush_soon(self)
        self._out.append(frame)

    def replace_responses(self, reply: Reply) -> None:
        """Replace every queued response by `reply`. Queued requests to the client stay."""
        queued, self._out = self._out, []
        for frame in queued:
            command = decode_command(frame[4:])
            if command.is_response:
                self._out.append(_response(command.opaque, reply))
            else:
                self._out.append(frame)

    def flush(self) -> None:
        """Write the queued frames to the socket. Only the server calls this."""
        if self._transport is not None:
            self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._out.clear()

    def close(self) -> None:
        """Close the connection after sending the queued frames. A client has CLOSE_SECONDS to read them."""
        if self._transport is not None:
            self._server.flush()
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        """Close the connection at once, without sending the queued frames."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        self.address = host_port(name[0], name[1]) if isinstance(name, tuple) and len(name) >= 2 else ""
        self.last_heard = asyncio.get_running_loop().time()
        raw = transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        self.last_heard = self._server.now()
        try:
            payloads = self._decoder.feed(data)
            if self._decoder.held_bytes or self.half_frame_bytes:
                self._server.record_partial_frame(self, self._decoder.held_bytes, begins=bool(payloads))
            for payload in payloads:
                command = decode_command(payload)
                if command.is_response:
                    future = self._calls.get(command.opaque)
                    if future is not None and not future.done():
                        future.set_result(command)
                else:
                    self._server.dispatch(self, command)
        except ProtocolError as error:
            log.warning("broker.frame_corrupt", client=self.address, error=str(error))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._transport = None
        self._out.clear()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(RemotingClosedError(self.address, "the client closed the connection"))
        self._server.lost(self)
        for callback in self._on_close:
            callback(self)
        self._on_close.clear()

    def _request(self, code: int, opaque: int, ext_fields: Mapping[str, str], body: bytes, flag: int) -> bytes:
        return encode_command(RemotingCommand(code, opaque, flag, dict(ext_fields), body, 0, None, LANGUAGE, VERSION))


def _response(opaque: int, reply: Reply) -> bytes:
    fields = cast("dict[str, str]", reply.ext_fields)
    return encode_command(
        RemotingCommand(reply.code, opaque, RESPONSE_FLAG, fields, reply.body, 0, reply.remark, LANGUAGE, VERSION)
    )


class RemotingServer:
    """The server of a broker or name server, on one or more addresses.

    `before_flush` is called before the responses of a turn of the event loop are sent. If it raises StorageError, all
    these responses become SERVICE_NOT_AVAILABLE.

    `open_requests` counts the requests whose processors run as tasks. Held requests are not counted.
    """

    def __init__(self, name: str, before_flush: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.channels: set[Channel] = set()
        self.open_requests = 0
        self._half_frames: dict[Channel, None] = {}  # channels with an incomplete frame, the oldest frame first
        self._half_frames_bytes = 0
        self._processors: dict[int, Processor] = {}
        self._before_flush = before_flush
        self._dirty: list[Channel] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.get_running_loop()
        self._idle_scan: asyncio.TimerHandle | None = None

    def serve(self, processors: Processors) -> None:
        """Add processors by request code. Raises ValueError if a code already has a processor."""
        for code, processor in processors.items():
            if int(code) in self._processors:
                raise ValueError(f"two processors for {code.name}")
            self._processors[int(code)] = processor

    async def listen(self, host: str, port: int) -> int:
        """Listen on an address, and return the port. Port 0 chooses a free port. Raises OSError."""
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
        """Called when a client has connected. Connections above MAX_CONNECTIONS are closed at once."""
        self.channels.add(channel)
        if len(self.channels) > MAX_CONNECTIONS:
            log.warning("broker.connections_full", server=self.name, limit=MAX_CONNECTIONS)
            channel.abort()

    def lost(self, channel: Channel) -> None:
        self.channels.discard(channel)
        self.record_partial_frame(channel, 0, begins=False)

    def record_partial_frame(self, channel: Channel, held_bytes: int, *, begins: bool) -> None:
        """Record how many bytes of an incomplete frame a channel holds. `begins` is True if the frame is a new frame.

        If all channels together hold more than HALF_FRAMES_BYTES, the channels whose frames began first are closed.
        A client that keeps sending completes its frames soon.
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
        self.record_partial_frame(channel, 0, begins=False)
        channel.abort()

    def flush_soon(self, channel: Channel) -> None:
        """Send the channel's frames at the end of this turn of the event loop."""
        if not self._dirty:
            self._loop.call_soon(self.flush)
        self._dirty.append(channel)

    def dispatch(self, channel: Channel, request: RemotingCommand) -> None:
        """Pass a request to the processor for its code. A code without a processor is refused."""
        processor = self._processors.get(request.code)
        if processor is None:
            remark = f" request type {request.code} not supported"
            channel.reply(request, Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        self.answer(channel, request, processor)

    def answer(self, channel: Channel, request: RemotingCommand, processor: Processor) -> None:
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
                channel.replace_responses(Reply(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)))
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


Answer = Reply | None
"""The result of a processor; None if the processor answers later with `Channel.reply`."""

Processor = Callable[["Channel", RemotingCommand], "Answer | Awaitable[Answer]"]
"""Answers one request of one client. An awaitable runs in a separate task, and other requests are served meanwhile."""

Processors = Mapping[RequestCode, Processor]
