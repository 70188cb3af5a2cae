"""HTTP requests of a client to the daemon's endpoint: one connection for each input, without a socket.

An input is a byte of flags, which describe the client, and the bytes of the connection. A NUL byte alone on a line is
a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.pauses import Pauses
from rmqd.daemon.group_history import HistoryRecorder
from rmqd.daemon.groups.group_engine import ReloadedGroups
from rmqd.daemon.groups.group_reload import ReloadReport
from rmqd.daemon.groups.local_groups import LocalGroups
from rmqd.daemon.groups.supervisor import LoopMonitor
from rmqd.daemon.http import http_api
from rmqd.daemon.http.daemon_status import DaemonInfo
from rmqd.daemon.http.http_access import AccessPolicy
from rmqd.daemon.http.http_api import HttpApi
from rmqd.daemon.http.http_server import HttpServer, LimitedProtocol
from rmqd.daemon.metrics import exposition
from rmqd.daemon.page import page_view
from tests.config.configs import config
from tests.daemon.fakes import ABOUT, FakeEngine
from tests.nightly.fuzzing.request_changes import changed_requests
from tests.nightly.fuzzing.target import Change, Finding, Target, growing, replaced
from tests.simulation.loop import LoopClock, SimulatedLoop

TOKEN: Final = b"op3n-sesame"
PAUSE: Final = b"\n\0\n"
MAX_REQUESTS: Final = 8
"""The most requests of one input: a scrape takes 2 ms, and dozens would exceed an input's time limit."""
_VERSION: Final = b" HTTP/"
QUIET_SECONDS: Final = 60.0
"""After so long without a byte from the client, a connection must be closed."""
HAS_TOKEN, IS_REMOTE, IN_PIECES, READS_NOTHING, HANGS_UP = 1, 2, 4, 8, 16
"""Bits of the first byte: a token is configured, the client is on another machine, and the client's behaviour."""
_WORDS: Final = (
    "GET / HTTP/1.1\r\n", "POST /api/v1/reload HTTP/1.1\r\n", "POST /api/v1/groups/mailer/pause", "/resume", "/livez",
    "/readyz", "/metrics", "/api/v1/status", "/api/v1/config", "/api/v1/history?since=0&group=mailer", "since=nan",
    "/live?open=mailer", "open=", "/static/page.js", "Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Mode: navigate\r\n",
    "?topic=orders&broker=b&queue=0", "queue=", "topic=", "broker=", "%2e%2e/",
    "%00", "%ff", "HEAD ", "OPTIONS * ", "CONNECT a:1 ", "DELETE ", "HTTP/1.0\r\n", "HTTP/2.0", "http://localhost/",
    "https://evil.example/", "Host: localhost\r\n", "Host: 127.0.0.1:9464\r\n", "Host: [::1]:1\r\n", "Host: a@b\r\n",
    "Origin: http://localhost:9464\r\n", "Origin: null\r\n", "Authorization: Bearer ", "Authorization: Basic ",
    "X-Forwarded-For: 1.2.3.4\r\n", "Forwarded: for=a\r\n", "Via: 1.1 a\r\n", "Content-Length: 5\r\n",
    "Content-Length: 99999999999999999999\r\n", "Transfer-Encoding: chunked\r\n", "Expect: 100-continue\r\n",
    "Connection: close\r\n", "Connection: upgrade\r\nUpgrade: websocket\r\n", "Connection: keep-alive\r\n",
    "Accept: application/openmetrics-text; version=1.0.0\r\n", "Accept: text/plain;q=", "0\r\n\r\n", "5\r\nhello\r\n",
    "\r\n\r\n", "\n\0\n", "\r", "\t", " ", "\x0b", "\x85", ";", ",", TOKEN.decode(), "[", "]",
    "::ffff:127.0.0.1", "127.0.0.2",
)  # fmt: skip


class Requests(Target):
    """Each request gets a response, each connection ends, and clients without permission change nothing."""

    name = "requests"
    most_bytes = 2048

    def __init__(self) -> None:
        self._loop = SimulatedLoop()
        self._errors = _Errors()
        self._loop.set_exception_handler(lambda _, context: self._errors.found.append(str(context)))
        self._clock = LoopClock()
        self._engine = FakeEngine()
        self._loop.run_until_complete(self._start())
        server: Any = HttpServer(HttpApi(self._daemon).app(), None)  # type: ignore[arg-type]
        self._config = server._server.config
        self._config.load()
        self._app = self._config.loaded_app
        self._config.loaded_app = self._watched
        self._statuses: list[int | None] = []

    def close(self) -> None:
        """Stop the groups."""
        self._daemon.host.stop()
        self._loop.run_until_complete(self._groups)
        self._loop.close()

    def words(self) -> Sequence[bytes]:
        """Parts of requests that this endpoint accepts or rejects."""
        return [word.encode("latin-1") for word in _WORDS]

    def run(self, data: bytes) -> None:
        """Run one connection from its start to its end, in simulated time."""
        data = _VERSION.join(data.split(_VERSION)[: MAX_REQUESTS + 1])
        flags = data[0] if data else 0
        self._daemon.begin(flags)
        self._statuses.clear()
        self._errors.found.clear()
        for group in self._engine.consumers.values():
            group[-1].pauses = Pauses()
        logger = logging.getLogger("uvicorn.error")
        with replaced(
            *((module, "call_in_thread", _at_once) for module in (http_api, exposition, page_view)),
            (logger, "handlers", [self._errors]),
            (logger, "propagate", False),
        ):
            transport = self._loop.run_until_complete(self._converse(flags, data[1:].split(PAUSE)))
        self.cases += max(1, len(self._statuses))
        self._check(flags, data, transport)

    def mutated(self, data: bytes, most_bytes: int, chance: Random, change: Change) -> bytes:
        """Change the flags, a line, a part of the first line, or any bytes. Content-Length is mostly corrected."""
        change = growing(change, chance)
        if (kind := chance.random()) < 0.1:
            return change(data, most_bytes)
        if kind < 0.15:
            return bytes([(data or b"\0")[0] ^ 1 << chance.randrange(5)]) + data[1:]
        return (data[:1] or b"\0") + changed_requests(data[1:], self.words(), most_bytes - 1, chance, change)

    async def _start(self) -> None:
        monitor = LoopMonitor(self._clock)
        root = config("mailer", "audit")
        host = LocalGroups(root, self._engine, self._clock, monitor)
        self._groups = asyncio.create_task(host.run())
        await host.started(5)
        recorder = HistoryRecorder(self._clock, host.view)
        recorder.add_points(await host.view())
        self._daemon = _Daemon(host, monitor, recorder, root)

    async def _converse(self, flags: int, pieces: list[bytes]) -> _Transport:
        state = ServerState()
        protocol = LimitedProtocol(self._config, state, {}, self._loop)
        transport = _Transport(protocol, self._loop, "10.0.0.9" if flags & IS_REMOTE else "127.0.0.1", flags)
        protocol.connection_made(transport)
        size = 7 if flags & IN_PIECES else 1 << 20
        for piece in pieces:
            for at in range(0, len(piece), size):
                await transport.readable()
                if not transport.is_closing():
                    protocol.data_received(piece[at : at + size])
            await asyncio.sleep(3.0)
        if flags & HANGS_UP and not transport.is_closing():
            protocol.eof_received()
            transport.abort()
        await asyncio.sleep(QUIET_SECONDS)
        transport.is_done = not state.tasks and not state.connections
        return transport

    async def _watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        number = len(self._statuses)
        self._statuses.append(None)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._statuses[number] = message["status"]
            await send(message)

        await self._app(scope, receive, sent)

    def _check(self, flags: int, data: bytes, transport: _Transport) -> None:
        if self._errors.found:
            raise Finding("; ".join(self._errors.found))
        if not (transport.is_closing() and transport.is_done):
            raise Finding("a connection, or a task of it, is left")
        excused = flags & (HANGS_UP | READS_NOTHING) or b"HTTP/1.1 400 " in transport.written  # its body is malformed
        if any((status is None and not excused) or status == 500 for status in self._statuses):
            raise Finding(f"statuses {self._statuses}")
        if transport.written and not transport.written.startswith(b"HTTP/1.1 "):
            raise Finding(f"no answer, but {bytes(transport.written[:40])!r}")
        changed = self._daemon.reloads or any(group[-1].pauses.scopes for group in self._engine.consumers.values())
        if changed and (TOKEN not in data.replace(PAUSE, b"") if flags & HAS_TOKEN else flags & IS_REMOTE):
            raise Finding("changed by somebody who may not")


@dataclass
class _Daemon:
    """A daemon with fake groups."""

    host: LocalGroups
    monitor: LoopMonitor
    recorder: HistoryRecorder
    config: RootConfig
    access: AccessPolicy = field(default_factory=lambda: AccessPolicy("", frozenset()))
    held: dict[str, str] = field(default_factory=dict)
    reloads: int = 0

    def begin(self, flags: int) -> None:
        """Reset the state of the previous input."""
        self.access = AccessPolicy(TOKEN.decode() if flags & HAS_TOKEN else "", frozenset({"rmqd.example"}))
        self.reloads = 0

    def about(self) -> DaemonInfo:
        """Return fixed values."""
        return ABOUT

    async def reload(self) -> ReloadReport:
        """Count the call."""
        self.reloads += 1
        return ReloadReport(ReloadedGroups(unchanged=("mailer",)))


class _Transport(asyncio.Transport):
    """The server's end of a connection in memory."""

    def __init__(self, protocol: asyncio.Protocol, loop: asyncio.AbstractEventLoop, client: str, flags: int) -> None:
        super().__init__({"peername": (client, 40_000), "sockname": ("127.0.0.1", 9464)})
        self.written = bytearray()
        self.is_done = False
        self._protocol = protocol
        self._loop = loop
        self._reads_nothing = bool(flags & READS_NOTHING)
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._is_closed = False

    async def readable(self) -> None:
        """Wait until the server reads, or has closed the connection."""
        await self._may_read.wait()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closed:
            is_first = not self.written
            self.written += data
            if is_first and self._reads_nothing:
                self._protocol.pause_writing()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._may_read.set()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closed

    def pause_reading(self) -> None:
        if not self._is_closed:
            self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the buffer is unlimited."""

    def get_write_buffer_size(self) -> int:
        return len(self.written) if self._reads_nothing else 0


class _Errors(logging.Handler):
    """The errors that the server logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(f"{record.getMessage().strip()}: {record.exc_info[1]!r}" if record.exc_info else str(record))


async def _at_once(function: Callable[[], Any]) -> Any:
    """Call the function in this thread, because threads are slow, and end in any order."""
    return function()
