"""The HTTP endpoint as the daemon uses it: its listening socket, and the server, imported at the first connection.

The daemon opens the socket first, so that a port in use is reported at once. Connections wait in the socket's accept
queue until the server runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import resource
import socket
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.config.model.forms import split_host_port
from rmqd.errors import RmqdError
from rmqd.runtime.clock import backoff_seconds
from rmqd.runtime.event_loop import enable_gc_after_start
from rmqd.runtime.own_threads import call_in_thread
from rmqd.wire.messages.message_id import host_port

if TYPE_CHECKING:
    from rmqd.daemon.http.http_api import DaemonControl


MAX_CONNECTIONS = 256
MIN_CONNECTIONS = 4


class ListenError(RmqdError):
    """The daemon cannot listen on the configured address."""


def http_descriptor_limit() -> int:
    """Return how many file descriptors HTTP may use: a quarter of the limit. Brokers and handlers need the rest."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(MIN_CONNECTIONS, soft // 4)


def listen_on(listen: str) -> socket.socket:
    """Open a non-blocking socket that listens on `host:port`. Raises ListenError."""
    host, port = split_host_port(listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            # The accept queue holds twice the connection limit, because no connection is accepted before the server is
            # imported. If the accept queue is full, a probe waits a second before its next attempt to connect.
            sock.listen(2 * min(MAX_CONNECTIONS, http_descriptor_limit()))
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        hint = "; stop the other process, or set another http.listen" if error.errno == errno.EADDRINUSE else ""
        raise ListenError(f"cannot listen on {listen} for HTTP: {error.strerror or error}{hint}") from error
    return sock


def address_of(sock: socket.socket) -> str:
    """Return the socket's listening address as `host:port`, with the port that was opened if 0 was configured."""
    host, port = sock.getsockname()[:2]
    return host_port(host, port)


log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 30.0


class HttpEndpoint:
    """Serves a daemon's API on a listening socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.address = address_of(sock)
        """The listening address as host:port, also after the socket was closed."""
        self._socket = sock
        self._stop: Callable[[], None] = lambda: None
        self._stopped = asyncio.Event()

    def warn_if_exposed(self, token: str) -> None:
        """Log a warning if other machines can reach the endpoint, and no token is set."""
        if not token and not ip_address(self._socket.getsockname()[0].partition("%")[0]).is_loopback:
            log.warning("http.unprotected", listen=self.address, next="set http.token or http.token_file")

    async def serve(self, daemon: DaemonControl) -> None:
        """Serve requests until `stop`. A failed server is restarted after a delay, and the groups keep running."""
        enable_gc_after_start()
        failures = 0
        while await self._wait_for_connection():
            try:
                await self._run_server(daemon)
                return
            except Exception:
                failures += 1
                pause_seconds = backoff_seconds(FIRST_PAUSE_SECONDS, failures, MAX_PAUSE_SECONDS)
                log.exception("http.failed", retry_in_seconds=pause_seconds)
                if self._socket.fileno() < 0:  # the failed server closed the socket, so it cannot be restarted
                    raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self._stopped.wait()

    def stop(self) -> None:
        """Accept no more connections. `serve` ends when running responses are sent, or after a second."""
        self._stopped.set()
        self._stop()

    def close(self) -> None:
        self._socket.close()

    async def _run_server(self, daemon: DaemonControl) -> None:
        # Import in a thread: the import takes a tenth of a second, and must not delay messages.
        api = await call_in_thread(lambda: importlib.import_module("rmqd.daemon.http.http_api"))
        server_module = await call_in_thread(lambda: importlib.import_module("rmqd.daemon.http.http_server"))
        server = server_module.HttpServer(api.HttpApi(daemon).app(), self._socket)
        self._stop = server.stop
        if not self._stopped.is_set():
            await server.run()

    async def _wait_for_connection(self) -> bool:
        """Wait until a client connects. Returns False if `stop` is called first."""
        if self._stopped.is_set():
            return False
        loop = asyncio.get_running_loop()
        connected: asyncio.Future[bool] = loop.create_future()

        def settle(came: bool) -> None:
            if not connected.done():
                connected.set_result(came)

        self._stop = partial(settle, False)
        loop.add_reader(self._socket, settle, True)
        try:
            return await connected
        finally:
            loop.remove_reader(self._socket)
