"""A client's connection as a server sees it: it receives requests, and sends responses and its own requests.

The result of a processor is a reply, a refusal (an exception), or None if the response follows later.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, cast

import structlog

from rmqd.codes import LanguageCode, RequestCode, ResponseCode
from rmqd.errors import ProtocolError, RemotingClosedError, RemotingTimeoutError, RmqdError
from rmqd.wire.command import ONEWAY_FLAG, RESPONSE_FLAG, FrameDecoder, RemotingCommand, decode_command, encode_command

SEE_FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""The last part of many remarks of the real servers."""

NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})

NO_CODE: Final = "not set any response code"  # the remark of some successful responses, whose code Java forgets to set


class Reply(NamedTuple):
    """The response to a request."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    ext_fields: Mapping[str, str] = NO_FIELDS
    body: bytes = b""


class Refusal(RmqdError):
    """Raised by a processor to answer with an error code. `remark` is the real broker's text."""

    def __init__(self, code: ResponseCode, remark: str, ext_fields: Mapping[str, str] = NO_FIELDS) -> None:
        super().__init__(f"{code.name}: {remark}")
        self.code = code
        self.remark = remark
        self.ext_fields = ext_fields


@contextlib.contextmanager
def refusing_with(ext_fields: Mapping[str, str]) -> Iterator[None]:
    """Add ext fields to every Refusal in the block, because Java responds with unset header numbers."""
    try:
        yield
    except Refusal as refusal:
        raise Refusal(refusal.code, refusal.remark, ext_fields) from None


log = structlog.get_logger(__name__)

VERSION: Final = 513  # 5.5.0: this broker behaves like that version
LANGUAGE: Final = LanguageCode.JAVA  # servers send it, and clients expect it
_opaques = itertools.count()


class Server(Protocol):
    """The server of a channel, as the channel uses it."""

    def now(self) -> float:
        """The loop's time in seconds."""

    def opened(self, channel: Channel) -> None:
        """Called when a connection is made."""

    def lost(self, channel: Channel) -> None:
        """Called when a connection ends."""

    def half_frame(self, channel: Channel, held_bytes: int, *, begins: bool) -> None:
        """Record how many bytes of an incomplete frame a channel holds. `begins`: the previous frame has just ended."""

    def flush_soon(self, channel: Channel) -> None:
        """Schedule `flush` for the end of this turn of the event loop."""

    def flush(self) -> None:
        """Send the queued frames of the channels."""

    def dispatch(self, channel: Channel, request: RemotingCommand) -> None:
        """Answer a request with the processor of its code."""

    def answer(self, channel: Channel, request: RemotingCommand, processor: Processor) -> None:
        """Answer a request with this processor."""


class Channel(asyncio.Protocol):
    """A connection, created by RemotingServer. `address` is the client's "ip:port"."""

    def __init__(self, server: Server) -> None:
        self.address = ""
        self.local_address = ""
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
        """Call `callback` when the connection ends. Each callback is kept once."""
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
        """Send a one-way request from the server."""
        self.write(self._request(code, next(_opaques) & 0x7FFFFFFF, ext_fields, body, ONEWAY_FLAG))

    async def call(
        self, code: int, ext_fields: Mapping[str, str], body: bytes = b"", *, timeout_seconds: float
    ) -> RemotingCommand:
        """Send a request from the server and wait for the client's response.

        Raises RemotingTimeoutError, or RemotingClosedError if the connection ends.
        """
        if self.closed:
            raise RemotingClosedError(self.address, "the client has gone")
        opaque = next(_opaques) & 0x7FFFFFFF
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._calls[opaque] = future
        self.write(self._request(code, opaque, ext_fields, body, 0))
        try:
            async with asyncio.timeout(timeout_seconds):
                return await future
        except TimeoutError:
            raise RemotingTimeoutError(self.address, f"no answer to request {code} in {timeout_seconds:g} s") from None
        finally:
            del self._calls[opaque]

    def write(self, frame: bytes) -> None:
        """Queue a frame. It is sent at the end of this turn of the loop, after the messages of the turn are durable."""
        if not self._out:
            self._server.flush_soon(self)
        self._out.append(frame)

    def refuse(self, reply: Reply) -> None:
        """Replace every queued response by `reply`. The server's own requests stay."""
        queued, self._out = self._out, []
        for frame in queued:
            command = decode_command(frame[4:])
            if command.is_response:
                self._out.append(_response(command.opaque, reply))
            else:
                self._out.append(frame)

    def flush(self) -> None:
        """Write the queued frames to the socket. Called by the server."""
        if self._transport is not None:
            self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._out.clear()

    def close(self) -> None:
        """Close the connection after sending the queued frames."""
        if self._transport is not None:
            self._server.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, without sending the queued frames."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop when the connection is made."""
        self._transport = cast("asyncio.Transport", transport)
        self.address = _address(transport.get_extra_info("peername"))
        self.local_address = _address(transport.get_extra_info("sockname"))
        self.last_heard = asyncio.get_running_loop().time()
        raw = transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop with received bytes."""
        self.last_heard = self._server.now()
        try:
            payloads = self._decoder.feed(data)
            if self._decoder.held_bytes or self.half_frame_bytes:
                self._server.half_frame(self, self._decoder.held_bytes, begins=bool(payloads))
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
        """Called by the event loop when either side has ended the connection."""
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


def _address(name: object) -> str:
    if not isinstance(name, tuple) or len(name) < 2:
        return ""
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


Answer = Reply | None
"""None: the processor answers later with `Channel.reply`."""

Processor = Callable[["Channel", RemotingCommand], "Answer | Awaitable[Answer]"]
"""Answers one request of one client. An awaitable runs in a separate task, and other requests are served meanwhile."""

Processors = Mapping[RequestCode, Processor]
