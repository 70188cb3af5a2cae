"""One connection to one name server or broker: many requests at once, told apart by their opaque."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from rmqd.client.security import Refusals
from rmqd.errors import ProtocolError, RemotingClosedError, RemotingError, RemotingTimeoutError
from rmqd.wire.command import RemotingCommand, decode_command, encode_request
from rmqd.wire.frame import FrameDecoder

if TYPE_CHECKING:
    from rmqd.client.traffic import Traffic

ONEWAY_TIMEOUT_SECONDS = 3.0  # until the peer's socket takes it
TLS_ALERT = b"\x15\x03"  # how an answer in TLS to a plain request begins
OPAQUE = itertools.count()  # one series for the process, as the Java client


class _Pending:
    __slots__ = ("code", "deadline", "future", "started", "timeout", "version")

    def __init__(
        self, code: int, version: int, future: asyncio.Future[RemotingCommand], started: float, timeout: float
    ) -> None:
        self.code = code
        self.version = version
        self.future = future
        self.started = started
        self.timeout = timeout
        self.deadline = started + timeout


class RemotingConnection(asyncio.Protocol):
    """Sends requests, resolves their futures with the replies, and hands the peer's own requests on.

    It never reconnects. When it is lost, `on_lost` is called, which is to call `fail_waiting`.
    """

    def __init__(
        self,
        address: str,
        *,
        max_frame_size_bytes: int,
        traffic: Traffic,
        on_request: Callable[[RemotingConnection, RemotingCommand], None],
        on_lost: Callable[[RemotingConnection], None],
        on_answer: Callable[[RemotingConnection], None] | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        self.address = address
        self.close_reason = ""
        self.was_answered = False
        """Whether the peer has sent anything."""
        self.made_by = 0
        """The version of the TLS settings."""
        self.error: Exception | None = None
        """With which the loop ended it."""
        self.is_suspect = False
        """The peer was silent: the next that is heard of it counts as the first."""
        self.heard_at = 0.0
        """When the peer sent something, by the loop's clock."""
        self.made_at = 0.0
        """By the loop's clock."""
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(max_frame_size_bytes)
        self._traffic = traffic
        self._on_request = on_request
        self._on_lost = on_lost
        self._on_answer = on_answer
        self._refusals = refusals or Refusals()
        self._refused_now = self._refusals.current
        self._transport: asyncio.Transport | None = None
        self._ended = asyncio.Event()
        self._pending: dict[int, _Pending] = {}
        self._late: dict[int, Callable[[bool], None]] = {}  # who hears of an answer that comes after its deadline
        self._out: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def __repr__(self) -> str:
        state = "closed" if self._transport is None else "open"
        return f"<RemotingConnection {self.address} {state}, {len(self._pending)} waiting>"

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._transport is not None

    @property
    def local_address(self) -> str | None:
        """Our end, as "host:port"; None where it is lost."""
        name = None if self._transport is None else self._transport.get_extra_info("sockname")
        return f"{name[0]}:{name[1]}" if name else None

    def call(self, code: int, opaque: int, frame: bytes, timeout_seconds: float) -> asyncio.Future[RemotingCommand]:
        """Send an encoded request; the future gives the reply, whatever its code.

        It fails with RemotingTimeoutError after `timeout_seconds`, and with RemotingClosedError if the connection ends.
        """
        if self._transport is None:
            raise RemotingClosedError(self.address, self.close_reason)
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        pending = _Pending(code, self._refusals.version, future, self._loop.time(), timeout_seconds)
        self._pending[opaque] = pending
        if pending.deadline < self._timer_at:
            self._arm(pending.deadline)
        self.write(frame)
        return future

    def hand_over(self, waiting: asyncio.Future[RemotingCommand], successor: asyncio.Future[RemotingCommand]) -> None:
        """Give the reply that `waiting` would get to `successor`; `waiting` is the caller's to settle."""
        for pending in self._pending.values():
            if pending.future is waiting:
                pending.future = successor
                return

    async def invoke(
        self, code: int, ext_fields: dict[str, str], body: bytes, timeout_seconds: float
    ) -> RemotingCommand:
        """Send a request and wait for its reply; a reply that comes after a cancellation is dropped."""
        await self.drained(timeout_seconds)
        opaque = next(OPAQUE) & 0x7FFFFFFF
        future = self.call(code, opaque, encode_request(code, opaque, ext_fields, body), timeout_seconds)
        try:
            return await future
        finally:
            self._pending.pop(opaque, None)

    async def invoke_oneway(self, code: int, ext_fields: dict[str, str], body: bytes = b"") -> None:
        """Send a request that gets no reply."""
        await self.drained(ONEWAY_TIMEOUT_SECONDS)
        self.write(encode_request(code, next(OPAQUE) & 0x7FFFFFFF, ext_fields, body, oneway=True))

    async def drained(self, timeout_seconds: float) -> None:
        """Wait while the peer reads slower than we write; raises RemotingTimeoutError if that lasts too long."""
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._writable.wait()
        except TimeoutError:
            raise RemotingTimeoutError(self.address, f"it takes no request, {timeout_seconds:g} s long") from None

    def write(self, frame: bytes) -> None:
        """Queue a frame; all frames of one turn of the loop leave in one system call."""
        if self._transport is None:
            raise RemotingClosedError(self.address, self.close_reason or "the connection is closed")
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def close(self, reason: str) -> None:
        """Close at once; waiting requests fail with `reason`."""
        if self._transport is not None:
            self.was_answered = True  # or would have been: this end is ours
            self.close_reason = self.close_reason or reason
            self._flush()
            if self._writable.is_set():
                self._transport.close()
            else:  # the peer does not read: waiting until it has would keep its requests waiting too
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods, not by its class
        self.made_at = self._loop.time()
        raw = transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                # a peer that vanished without a word is noticed after a minute, not after the kernel's quarter hour
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", 18), 60_000)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        is_first, self.was_answered = not self.was_answered, True
        self.heard_at = self._loop.time()
        try:
            for payload in self._decoder.feed(data):
                command = decode_command(payload)
                if command.is_response:
                    self._resolve(command)
                else:
                    self._on_request(self, command)
        except ProtocolError as error:
            if is_first and data.startswith(TLS_ALERT) and self._transport is not None:
                self.was_answered = False  # not in the language that we speak: it is asked about that
                self._transport.abort()
            else:
                self.corrupt(error)
        else:
            if is_first or self.is_suspect:
                self.is_suspect = False
                if self._on_answer is not None:
                    self._on_answer(self)

    def corrupt(self, error: ProtocolError) -> None:
        """Close because the peer sent what cannot be decoded: what follows it cannot be trusted either."""
        self._traffic.corrupt_frame(self.address, error)
        self.close(f"a frame could not be decoded: {error}")

    def pause_writing(self) -> None:
        """Called by the loop."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by the loop."""
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop."""
        self.close_reason = self.close_reason or (str(error) if error else "the peer closed the connection")
        self._transport = None
        self._out.clear()
        self._writable.set()
        self._ended.set()
        self.error = error
        self._on_lost(self)

    async def ended(self, timeout_seconds: float) -> None:
        """Wait until a closed connection is gone. Over TLS that takes the peer's word; past the time it is cut."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._ended.wait()
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
            await self._ended.wait()

    async def finished(self, timeout_seconds: float) -> None:
        """Wait for the answers to what should have one within this time, and no longer."""
        soon = [pending.future for pending in self._pending.values() if pending.timeout <= timeout_seconds]
        if soon:
            await asyncio.wait(soon, timeout=timeout_seconds)

    def fail_waiting(self, make_error: Callable[[], RemotingError]) -> None:
        """Have every waiting request fail; an exception of its own for each, as each is raised elsewhere."""
        if self._timer is not None:
            self._timer.cancel()
        late, self._late = self._late, {}
        for hear in late.values():
            hear(False)
        waiting, self._pending = self._pending, {}
        for pending in waiting.values():
            self._fail(pending, make_error(), "closed")

    def _flush(self) -> None:
        if self._out and self._transport is not None:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def _resolve(self, command: RemotingCommand) -> None:
        pending = self._pending.pop(command.opaque, None)
        if pending is None:  # came after its deadline
            if (hear := self._late.pop(command.opaque, None)) is not None:
                hear(True)
            return
        self._traffic.answered(pending.code, self._loop.time() - pending.started)
        if command.code or self._refused_now:
            self._refusals.judge(self.address, pending.code, pending.version, command)
        if not pending.future.done():
            pending.future.set_result(command)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._expire)

    def _expire(self) -> None:
        now, self._timer_at, self._timer = self._loop.time(), float("inf"), None
        for opaque, pending in [(o, p) for o, p in self._pending.items() if p.deadline <= now]:
            del self._pending[opaque]
            error = RemotingTimeoutError(self.address, f"no answer to request {pending.code} in {pending.timeout:g} s")
            error.on_late = partial(self._late.__setitem__, opaque)
            self._fail(pending, error, "timeout")
        if self._pending:
            self._arm(min(pending.deadline for pending in self._pending.values()))

    def _fail(self, pending: _Pending, error: RemotingError, reason: str) -> None:
        self._traffic.failed(pending.code, reason)
        if not pending.future.done():
            pending.future.set_exception(error)
