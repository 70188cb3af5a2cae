"""The HTTP endpoint as the daemon uses it. The server is imported at the first connection."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.backoff import doubled
from rmqd.daemon.http.listener import address_of, is_reachable_from_elsewhere
from rmqd.own_threads import in_own_thread
from rmqd.process.loop import settle_garbage_collection

if TYPE_CHECKING:
    from rmqd.daemon.http.api import DaemonControl

log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS: Final = 1.0
MOST_PAUSE_SECONDS: Final = 30.0


class HttpEndpoint:
    """Serves a daemon's API on a listening socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.address = address_of(sock)
        """The listening address as host:port, also after the socket was closed."""
        self._socket = sock
        self._stop: Callable[[], None] = lambda: None
        self._stopped = asyncio.Event()

    def warn_of_strangers(self, token: str) -> None:
        """Log a warning if the network can reach the endpoint, and no token is set."""
        if not token and is_reachable_from_elsewhere(self._socket):
            log.warning("http.unprotected", listen=self.address, next="set http.token or http.token_file")

    async def serve(self, daemon: DaemonControl) -> None:
        """Serve requests until `stop`. After a failure the server restarts after a while; the groups continue
        meanwhile.
        """
        settle_garbage_collection()
        failures = 0
        while await self._knock():
            try:
                await self._answer(daemon)
                return
            except Exception:
                failures += 1
                pause_seconds = doubled(FIRST_PAUSE_SECONDS, failures, MOST_PAUSE_SECONDS)
                log.exception("http.failed", retry_in_seconds=pause_seconds)
                if self._socket.fileno() < 0:  # the server closed it before it failed
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

    async def _answer(self, daemon: DaemonControl) -> None:
        # Import in a thread: it takes a tenth of a second, and messages are being handled meanwhile.
        api = await in_own_thread(lambda: importlib.import_module("rmqd.daemon.http.api"))
        server_module = await in_own_thread(lambda: importlib.import_module("rmqd.daemon.http.server"))
        server = server_module.HttpServer(api.HttpApi(daemon).app(), self._socket)
        self._stop = server.stop
        if not self._stopped.is_set():
            await server.run()

    async def _knock(self) -> bool:
        """Wait for the first connection. Returns False if `stop` is called first."""
        if self._stopped.is_set():
            return False
        loop = asyncio.get_running_loop()
        knock: asyncio.Future[bool] = loop.create_future()

        def settle(came: bool) -> None:
            if not knock.done():
                knock.set_result(came)

        self._stop = partial(settle, False)
        loop.add_reader(self._socket, settle, True)
        try:
            return await knock
        finally:
            loop.remove_reader(self._socket)
