"""Opens connections, with or without TLS, and finds out why one failed or was closed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import NamedTuple

from rmqd.client.remoting.breaker import Breakers
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.client.remoting.security import Security
from rmqd.client.remoting.tls import explain, why_closed
from rmqd.clock import Clock
from rmqd.errors import RemotingConnectError, TlsError, TlsFileError

CONNECT_TIMEOUT_SECONDS = 3.0  # Java: connectTimeoutMillis
TLS_CONNECT_TIMEOUT_SECONDS = 6.0  # a handshake takes both ends some CPU time
TLS_SHUTDOWN_SECONDS = 1.0  # for the peer's close_notify; waiting requests fail only after it
ASK_AGAIN_SECONDS = 60.0  # between attempts to find out why a server closes connections; each opens more of them
RENEWED = "the TLS settings have changed"


class _Found(NamedTuple):
    """The reason why an address closes connections (None: unknown), and how long it is valid."""

    reason: str | None
    until: float


class Connector:
    """Opens connections with the present security settings. `make(address)` creates the protocol object."""

    def __init__(
        self, security: Security, breakers: Breakers, make: Callable[[str], RemotingConnection], clock: Clock
    ) -> None:
        self._security = security
        self._breakers = breakers
        self._make = make
        self._clock = clock
        self._server_names: dict[str, str] = {}
        self._found: dict[str, _Found] = {}

    def called(self, address: str, host: str) -> None:
        """Check the certificate of a numeric address against the host name that resolved to it."""
        self._server_names[address] = host

    def start_anew(self) -> None:
        """Forget all failures, because they are from settings that are no longer in use."""
        self._breakers.forget()
        self._found.clear()

    async def connect(self, address: str) -> RemotingConnection:
        """Open a connection. Raises RemotingConnectError, or TlsError.

        If the security settings change meanwhile, it is closed and another one is opened with the new settings.
        """
        while True:
            version = self._security.version
            try:
                connection = await self._attempt(address)
            except RemotingConnectError as error:
                if version == self._security.version:
                    self._note(error)
                    raise
            else:
                if version == self._security.version:
                    return connection
                connection.close(RENEWED)

    async def why_lost(self, connection: RemotingConnection) -> TlsError | None:
        """Find out why a server closed a connection without a response. Raises nothing.

        The server may require TLS, or a certificate, or no TLS. If it closes a second connection too, its breaker
        opens. Otherwise the client would reconnect again and again without a pause.
        """
        address = connection.address
        reason = None if connection.error is None else self._explain(connection.error, address)
        if reason is None:
            reason = await self._ask_otherwise(address)
        error = None if reason is None else TlsError(address, reason)
        if connection.made_by == self._security.version:
            is_again = self._breakers.lost(address)
            if error is not None or is_again:
                self._note(error or RemotingConnectError(address, connection.close_reason))
        return error

    async def _attempt(self, address: str) -> RemotingConnection:
        loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        name, seconds, version = self._name(address), CONNECT_TIMEOUT_SECONDS, self._security.version
        try:
            context = self._security.context()
            seconds = CONNECT_TIMEOUT_SECONDS if context is None else TLS_CONNECT_TIMEOUT_SECONDS
            async with self._clock.timeout(seconds):
                _, connection = await loop.create_connection(
                    lambda: self._made(address, version),
                    host.strip("[]"),
                    int(port),
                    ssl=context,
                    server_hostname=None if context is None else name,
                    ssl_shutdown_timeout=None if context is None else TLS_SHUTDOWN_SECONDS,
                )
        except TlsFileError as error:
            raise TlsError(address, str(error)) from error
        except (OSError, TimeoutError, ValueError, OverflowError) as error:  # OverflowError: a port above 65535
            reason = self._explain(error, address)
            if isinstance(error, ConnectionResetError) and self._security.tls.enabled:  # in the handshake
                reason = await self._ask_otherwise(address)
            if reason is not None:
                raise TlsError(address, reason) from error
            raise RemotingConnectError(address, _connect_reason(error, seconds)) from error
        if not connection.is_open:
            raise await self.why_lost(connection) or RemotingConnectError(address, connection.close_reason)
        return connection

    def _made(self, address: str, version: int) -> RemotingConnection:
        connection = self._make(address)
        connection.made_by = version
        return connection

    async def _ask_otherwise(self, address: str) -> str | None:
        now, found = self._clock.monotonic(), self._found.get(address)
        if found is None or now >= found.until:
            host, _, port = address.rpartition(":")
            try:
                context = self._security.context()
            except TlsFileError:  # the next attempt to connect reports the error
                return None
            shows_one = bool(self._security.tls.cert_file)
            name = self._name(address)
            reason = await why_closed(host.strip("[]"), int(port), context, name, self._clock, shows_one=shows_one)
            found = self._found[address] = _Found(reason, now + ASK_AGAIN_SECONDS)
        return found.reason

    def _explain(self, error: BaseException, address: str) -> str | None:
        return explain(error, self._name(address), shows_one=bool(self._security.tls.cert_file))

    def _name(self, address: str) -> str:
        host = address.rpartition(":")[0].strip("[]")
        return self._security.tls.server_name or self._server_names.get(address, host)

    def _note(self, error: RemotingConnectError) -> None:
        """Open the address's breaker, and report a TLS problem as a refusal."""
        self._breakers.failed(error.address, error)
        if isinstance(error, TlsError):
            self._security.refusals.refused(error.address, str(error), is_trust=True)


def _connect_reason(error: BaseException, seconds: float) -> str:
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # asyncio's own text repeats the address
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, ConnectionError):
        return str(error) or "the peer closed the connection while it was opened"
    return str(error) or f"no connection within {seconds:g} s"
