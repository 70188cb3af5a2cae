"""One connection to a name server or broker, with many requests in flight. Each request has a number (opaque)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import socket
from collections.abc import Callable, Iterator
from typing import Final, cast

import structlog

from rmqd.client.remoting.frame_reader import FrameReader
from rmqd.client.remoting.pending import PendingRequests, ResponseFuture, TrafficCounters
from rmqd.client.remoting.security import Refusals
from rmqd.errors import ProtocolError, RemotingClosedError, RemotingTimeoutError
from rmqd.runtime.clock import Clock
from rmqd.runtime.plain_text import duration
from rmqd.wire.command import RemotingCommand, encode_request

log = structlog.get_logger(__name__)

TLS_ALERT = b"\x15\x03"  # the first bytes of a TLS server's response to a request without TLS
OPAQUE_NUMBERS: Final[Iterator[int]] = map((0x7FFFFFFF).__and__, itertools.count())
"""The opaque numbers of requests. All connections of the process use one series, as in the Java client."""


class RemotingConnection(asyncio.Protocol):
    """A connection that sends requests, resolves their futures, and passes requests from the peer to `on_request`.

    It never reconnects. When this client or the peer closes the connection, `on_lost` is called at once. This callback
    must call `pending.fail`, so that no request waits for a response that cannot arrive.
    """

    def __init__(
        self,
        address: str,
        *,
        max_frame_size_bytes: int,
        traffic: TrafficCounters,
        on_request: Callable[[RemotingConnection, RemotingCommand], None],
        on_lost: Callable[[RemotingConnection], None],
        clock: Clock,
        refusals: Refusals,
        on_answer: Callable[[RemotingConnection], None] | None = None,
    ) -> None:
        self.address = address
        self.close_reason = ""
        self.has_received_bytes = False
        """Whether the peer has sent any bytes."""
        self.security_version = 0
        """The version of the security settings (`Security.version`) with which the connection was opened."""
        self.error: Exception | None = None
        """The exception that the event loop passed to `connection_lost`; None for a normal end."""
        self.was_closed_here = False
        """Whether this client, and not the peer, closed the connection."""
        self.corruption: ProtocolError | None = None
        """The error for bytes from the peer that cannot be decoded; None if there were none."""
        self.is_suspect = False
        """Whether the peer was silent. If True, `on_answer` is called for the next bytes, as for the first bytes."""
        self.had_timeout = False
        """Whether a request on this connection timed out while the peer sent no bytes."""
        self.received_at = 0.0
        """When the last bytes were received, by the client's clock."""
        self.read_count = 0
        """How many times bytes were received."""
        self.frame_started_at: float | None = None
        """When the incomplete frame's first bytes were received, by the client's clock; None without such a frame."""
        self.made_at = 0.0
        """When the connection was opened, by the client's clock."""
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._traffic = traffic
        self._on_lost = on_lost
        self._on_answer = on_answer
        self.pending = PendingRequests(address, traffic, refusals, clock)
        self._intake = FrameReader(
            max_frame_size_bytes, self.pending.resolve, functools.partial(on_request, self), self._failed, self._resume
        )
        self._transport: asyncio.Transport | None = None
        self._ending: asyncio.Transport | None = None
        self._ended = asyncio.Event()
        self._out: list[bytes] = []
        self._will_flush = False  # whether a flush of `_out` is scheduled, or follows at once
        self._writable = asyncio.Event()
        self._writable.set()

    def __repr__(self) -> str:
        state = "closed" if self._transport is None else "open"
        return f"<RemotingConnection {self.address} {state}, {len(self.pending)} waiting>"

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._transport is not None

    @property
    def is_writable(self) -> bool:
        """Whether the peer reads fast enough, so that the write buffer is not full."""
        return self._writable.is_set()

    @property
    def silent_seconds(self) -> float:
        """How many seconds the peer has sent nothing while a request waited for its response; 0 if no request waits."""
        oldest_at = self.pending.oldest_at
        return 0.0 if oldest_at is None else self._clock.monotonic() - max(self.received_at, oldest_at)

    @property
    def local_address(self) -> str | None:
        """The local address of the connection, as "host:port"; None if the connection has ended."""
        name = None if self._transport is None else self._transport.get_extra_info("sockname")
        return f"{name[0]}:{name[1]}" if name else None

    def call(self, code: int, opaque: int, frame: bytes, timeout_seconds: float) -> ResponseFuture:
        """Send an encoded request. The result of the future is the response, whatever its code.

        The future fails with RemotingTimeoutError after `timeout_seconds`, and with RemotingClosedError if the
        connection ends.
        """
        if self._transport is None:
            raise RemotingClosedError(self.address, self.close_reason)
        future = self.pending.add(code, opaque, timeout_seconds)
        self.write(frame)
        return future

    async def invoke(
        self, code: int, ext_fields: dict[str, str], body: bytes, timeout_seconds: float
    ) -> RemotingCommand:
        """Send a request and return its response, whatever its code. A response after a cancellation is dropped."""
        await self.wait_writable(timeout_seconds)
        opaque = next(OPAQUE_NUMBERS)
        future = self.call(code, opaque, encode_request(code, opaque, ext_fields, body), timeout_seconds)
        try:
            return await future
        finally:
            self.pending.drop(opaque)

    async def wait_writable(self, timeout_seconds: float) -> None:
        """Wait until the write buffer has room. Raises RemotingTimeoutError if the peer does not read in time."""
        if self._writable.is_set():
            return
        try:
            async with self._clock.timeout(timeout_seconds):
                await self._writable.wait()
        except TimeoutError:
            raise RemotingTimeoutError(self.address, f"the peer read no data for {duration(timeout_seconds)}") from None

    def write(self, frame: bytes) -> None:
        """Queue a frame. All frames that are queued in one turn of the event loop are sent in one system call."""
        if self._transport is None:
            raise RemotingClosedError(self.address, self.close_reason or "the connection is closed")
        if not self._will_flush:
            self._loop.call_soon(self._flush)
            self._will_flush = True
        self._out.append(frame)

    def close(self, reason: str) -> None:
        """Close the connection at once. Requests in flight fail, with `reason` as the cause."""
        self._flush()
        self._end(reason, now=not self._writable.is_set())  # discard unsent bytes if the peer does not read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class has the methods, but another base
        self.made_at = self._clock.monotonic()
        raw = transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                # a peer that vanished is noticed after a minute, not after the kernel's quarter of an hour
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", 18), 60_000)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:  # this client closed the connection; the bytes were still in TLS buffers
            return
        is_first, self.has_received_bytes = not self.has_received_bytes, True
        self.received_at = self._clock.monotonic()
        self.read_count += 1
        try:
            has_ended = self._intake.feed(data, self._transport)
            if not self._intake.is_within_frame:
                self.frame_started_at = None
            elif has_ended or self.frame_started_at is None:
                self.frame_started_at = self.received_at
        except ProtocolError as error:
            if is_first and data.startswith(TLS_ALERT):
                self.has_received_bytes = False  # a TLS alert is not a response; the connector investigates
                self._transport.abort()
            else:
                self.corrupt(error)
        else:
            if is_first or self.is_suspect:
                self.is_suspect = False
                if self._on_answer is not None:
                    self._on_answer(self)
        finally:  # even after an exception, because tasks whose responses were received would otherwise wait forever
            self._resume()

    def _resume(self) -> None:
        """Continue the tasks whose responses were received, and send the requests that these tasks make at once.

        So a queue's next pull is sent by the callback that received the response, without further turns of the loop.
        """
        self._will_flush = True
        try:
            self.pending.resume()
        finally:
            self._flush()

    def corrupt(self, error: ProtocolError) -> None:
        """Close the connection because the peer's bytes cannot be decoded. The start of the next frame is unknown."""
        self._traffic.count_corrupt_frame(self.address, error)
        self.corruption = error
        self.close(f"a frame could not be decoded: {error}")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._ending = None
        self._writable.set()
        self._ended.set()
        self._intake.call_when_done(functools.partial(self._lost, error))

    def _lost(self, error: Exception | None) -> None:
        was_open, self._transport = self._transport is not None, None
        if was_open:
            self.close_reason = self.close_reason or (str(error) if error else "the peer closed the connection")
            self.error = error
            self._on_lost(self)

    async def wait_closed(self, timeout_seconds: float) -> None:
        """Wait until the closed connection has ended, with TLS after the peer's close_notify. Abort it on timeout."""
        try:
            async with self._clock.timeout(timeout_seconds):
                await self._ended.wait()
        except TimeoutError:
            if self._ending is not None:
                self._ending.abort()
            await self._ended.wait()

    def _flush(self) -> None:
        """Send the queued frames.

        A failure ends the connection. Otherwise, if an exception such as a MemoryError left frames queued while no
        flush is scheduled, the connection would look healthy but never send these frames.
        """
        self._will_flush = False
        try:
            out, self._out = self._out, []
            if out and self._transport is not None and not self._ended.is_set():
                self._transport.write(b"".join(out))
        except Exception as error:  # a bug in rmqd or the loop: this connection is useless, but a new one may work
            self._end(f"a request could not be sent: {error!r}", now=True)
            log.exception("connection.failed", address=self.address)

    def _failed(self, error: Exception) -> None:
        """Called when received bytes cannot be decoded, or their handling raised an error. Close the connection."""
        if isinstance(error, ProtocolError):
            self.corrupt(error)
        else:
            self._end(f"received bytes could not be handled: {error!r}", now=True)
            log.error("connection.failed", address=self.address, exc_info=error)

    def _end(self, reason: str, *, now: bool) -> None:
        transport, self._transport = self._transport, None
        if transport is None:
            return
        self._intake.stop()
        self._ending, self.was_closed_here = transport, True
        self.close_reason = self.close_reason or reason
        self._writable.set()  # wakes callers that wait in `drained`, so that they see the end
        if now:
            transport.abort()
        else:
            transport.close()
        self._on_lost(self)
