"""The HTTP endpoint as the daemon uses it. The server is imported when the first connection comes."""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from rmqd.daemon.http.listener import address_of, is_reachable_from_elsewhere
from rmqd.own_threads import in_own_thread
from rmqd.process.loop import settle_garbage_collection

if TYPE_CHECKING:
    from rmqd.daemon.http.api import DaemonControl

log = structlog.get_logger(__name__)


class HttpEndpoint:
    """Serves a daemon's API on a listening socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.address = address_of(sock)
        """The listening address as host:port, known also after the socket is closed."""
        self._socket = sock
        self._stop: Callable[[], None] = lambda: None

    def warn_of_strangers(self, token: str) -> None:
        """Log a warning if the network reaches the endpoint, and no token protects it against local proxies."""
        if not token and is_reachable_from_elsewhere(self._socket):
            log.warning("http.unprotected", listen=self.address, next="set http.token or http.token_file")

    async def serve(self, daemon: DaemonControl) -> None:
        """Answer requests until `stop`. An error ends the endpoint alone, not the daemon."""
        settle_garbage_collection()
        try:
            if not await self._knock():
                return
            # Imported in a thread: it takes a tenth of a second, and messages are being handled meanwhile.
            api = await in_own_thread(lambda: importlib.import_module("rmqd.daemon.http.api"))
            server_module = await in_own_thread(lambda: importlib.import_module("rmqd.daemon.http.server"))
            server = server_module.HttpServer(api.HttpApi(daemon).app(), self._socket)
            self._stop = server.stop
            await server.run()
        except Exception:  # the groups do not need the endpoint; probes fail, and the log has the error
            log.exception("http.failed")

    def stop(self) -> None:
        """Accept no more connections. `serve` ends when answers under way are sent, or after a second."""
        self._stop()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    async def _knock(self) -> bool:
        """Wait for the first connection. Returns False if `stop` is called first."""
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
