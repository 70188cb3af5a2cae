"""Opening of connections, with or without TLS, explanations of failures, and the circuit breakers of addresses.

A circuit breaker makes requests to a failed address fail at once for a while. It has the three usual states. Closed:
the address has not failed. Open: the address failed, and all requests to it fail at once until the pause ends. Half
open: the pause has ended, and one request, the probe, finds out whether the address responds, while all other requests
still fail at once. Any response closes the breaker. Pauses double with each failure, and are randomised, so that
clients that lost the same broker do not all reconnect at the same time.

Three kinds of failures are counted separately, because they have different causes:

- A *failure*: no connection could be opened, or the peer was silent. This opens the breaker.
- A *loss*: a connection ended before the peer had sent any response. Servers close connections in this way if TLS
  settings do not match. One loss is ignored; the second consecutive loss counts as a failure.
- A *break*: a connection received bytes that cannot be decoded, or the peer responded and then closed the connection
  within the first second. A response on the next connection does not reset the number of breaks, because most responses
  arrive intact even on a bad network. Pauses after breaks are short, because a broker removes a client when its
  connection ends, and after a second without a heartbeat the other members acquire the client's queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.client.remoting.security import Security, explain_tls_error, why_closed
from rmqd.errors import CircuitOpenError, RemotingConnectError, RemotingError, TlsError, TlsFileError
from rmqd.runtime.clock import Clock, backoff_seconds, with_jitter
from rmqd.runtime.plain_text import duration

CONNECT_TIMEOUT_SECONDS = 3.0  # Java: connectTimeoutMillis
TLS_CONNECT_TIMEOUT_SECONDS = 6.0  # longer, because a handshake takes client and server some CPU time
TLS_SHUTDOWN_SECONDS = 1.0  # how long to wait for the peer's close_notify; requests in flight fail afterwards
ASK_AGAIN_SECONDS = 60.0  # how long the reason why a server closes connections is cached
RENEWED = "the TLS settings have changed"


class _Found(NamedTuple):
    """The cached reason why an address closes connections (None: unknown), and until when it is valid (monotonic)."""

    reason: str | None
    until: float


class Connector:
    """The opener of connections with the present security settings. `make(address)` creates a RemotingConnection."""

    def __init__(
        self, security: Security, breakers: Breakers, make: Callable[[str], RemotingConnection], clock: Clock
    ) -> None:
        self._security = security
        self._breakers = breakers
        self._make = make
        self._clock = clock
        self._server_names: dict[str, str] = {}
        self._found: dict[str, _Found] = {}

    def set_server_name(self, address: str, host: str) -> None:
        """Register the host name of a numeric address. The server's certificate must be valid for this name."""
        self._server_names[address] = host

    def forget_failures(self) -> None:
        """Close all breakers and forget all reasons. Call it after the security settings changed."""
        self._breakers.forget()
        self._found.clear()

    async def connect(self, address: str) -> RemotingConnection:
        """Open a connection. Raises RemotingConnectError, or TlsError for a TLS problem.

        If the security settings change meanwhile, the connection is replaced by a connection with the new settings.
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

    async def closing_reason(self, connection: RemotingConnection) -> TlsError | None:
        """Return the TLS problem that made a server close a connection without a response; None if unknown.

        Raises nothing. Opens the address's breaker if there is a TLS problem, or if the server closes connections
        repeatedly. Otherwise the client would reconnect again and again without a pause.
        """
        address = connection.address
        reason = None if connection.error is None else self._explain(connection.error, address)
        if reason is None:
            reason = await self._ask_otherwise(address)
        error = None if reason is None else TlsError(address, reason)
        if connection.security_version == self._security.version:
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
            if isinstance(error, ConnectionResetError) and self._security.tls.enabled:  # reset during the TLS handshake
                reason = await self._ask_otherwise(address)
            if reason is not None:
                raise TlsError(address, reason) from error
            raise RemotingConnectError(address, _connect_reason(error, seconds)) from error
        if not connection.is_open:
            raise await self.closing_reason(connection) or RemotingConnectError(address, connection.close_reason)
        return connection

    def _made(self, address: str, version: int) -> RemotingConnection:
        connection = self._make(address)
        connection.security_version = version
        return connection

    async def _ask_otherwise(self, address: str) -> str | None:
        now, found = self._clock.monotonic(), self._found.get(address)
        if found is None or now >= found.until:
            host, _, port = address.rpartition(":")
            try:
                context = self._security.context()
            except TlsFileError:  # the next attempt to connect raises this error
                return None
            shows_one = bool(self._security.tls.cert_file)
            name = self._name(address)
            reason = await why_closed(host.strip("[]"), int(port), context, name, self._clock, shows_one=shows_one)
            found = self._found[address] = _Found(reason, now + ASK_AGAIN_SECONDS)
        return found.reason

    def _explain(self, error: BaseException, address: str) -> str | None:
        return explain_tls_error(error, self._name(address), shows_one=bool(self._security.tls.cert_file))

    def _name(self, address: str) -> str:
        host = address.rpartition(":")[0].strip("[]")
        return self._security.tls.server_name or self._server_names.get(address, host)

    def _note(self, error: RemotingConnectError) -> None:
        """Open the breaker of the address. A TLS problem is also reported as a refusal."""
        self._breakers.record_failure(error.address, error)
        if isinstance(error, TlsError):
            self._security.refusals.record_refusal(error.address, str(error), is_trust=True)


def _connect_reason(error: BaseException, seconds: float) -> str:
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # shorter than asyncio's text, which repeats the address
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, ConnectionError):
        return str(error) or "the peer closed the connection while it was opened"
    return str(error) or f"no connection within {duration(seconds)}"


FIRST_SECONDS = 0.2  # first pause after a failure or break
MAX_SECONDS = 5.0  # longest pause after failures
MAX_BROKEN_SECONDS = 0.5  # longest pause after breaks; after a second, other members acquire this member's queues
FORGET_SECONDS = 60.0  # after this time without a break, earlier breaks do not count any more


@dataclass(slots=True)
class _Breaker:
    """The failures of one address."""

    error: RemotingError | None = None
    """The last failure; None if there were only losses, or a single break."""
    failures: int = 0
    failed_at: float = float("-inf")
    losses: int = 0
    """The number of consecutive losses: connections that ended without a response."""
    broken: int = 0
    """The number of breaks, each within FORGET_SECONDS of the previous one."""
    broke_at: float = 0.0
    is_silent: bool = False
    """Whether the last failure was a silence: the peer accepts connections but does not respond."""
    is_probed: bool = False
    until: float = 0.0


_WITHOUT_FAILURE: Final = _Breaker()


class Breakers:
    """The circuit breakers of a client's addresses. The module describes their states and the kinds of failures."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._breakers: dict[str, _Breaker] = {}

    def record_failure(self, address: str, error: RemotingError) -> None:
        """Record a failure, and open the breaker. The pause is twice the previous pause, up to MAX_SECONDS."""
        breaker = self._breakers.setdefault(address, _Breaker())
        self._rest(breaker, error, backoff_seconds(FIRST_SECONDS, breaker.failures + 1, MAX_SECONDS))
        breaker.failures, breaker.failed_at = breaker.failures + 1, self._now()

    def failed_since(self, address: str, asked_at: float) -> bool:
        """Return whether the address failed at or after `asked_at`, and has not responded since."""
        return self._of(address).failed_at >= asked_at

    def lost(self, address: str) -> bool:
        """Record a loss. Returns False for the first loss since the address last responded, True for further losses."""
        breaker = self._breakers.setdefault(address, _Breaker())
        breaker.losses += 1
        return breaker.losses > 1

    def record_break(self, address: str, error: RemotingError) -> None:
        """Record a break, and open the breaker if the previous break was less than a minute ago.

        Responses between the breaks do not matter. Otherwise the client would reconnect without a pause to a server
        that answers every heartbeat and otherwise sends garbage.
        """
        breaker, now = self._breakers.setdefault(address, _Breaker()), self._now()
        breaker.broken = breaker.broken + 1 if now - breaker.broke_at < FORGET_SECONDS else 1
        breaker.broke_at = now
        if breaker.broken > 1:
            self._rest(breaker, error, backoff_seconds(FIRST_SECONDS, breaker.broken - 1, MAX_BROKEN_SECONDS))

    def _rest(self, breaker: _Breaker, error: RemotingError, pause_seconds: float) -> None:
        breaker.error = error
        breaker.is_silent = not isinstance(error, RemotingConnectError)
        breaker.until = self._now() + with_jitter(pause_seconds, 0.5, 1.0)

    def answered(self, address: str) -> None:
        """Called when the address has responded. Close its breaker; only the number of recent breaks is kept."""
        former = self._breakers.pop(address, _WITHOUT_FAILURE)
        if former.broken and self._now() - former.broke_at < FORGET_SECONDS:
            self._breakers[address] = _Breaker(broken=former.broken, broke_at=former.broke_at)

    def forget(self) -> None:
        """Close all breakers, and forget all failures."""
        self._breakers.clear()

    def is_open(self, address: str) -> bool:
        """Return whether the address failed and has not responded since. The pause may have ended already."""
        return self._of(address).error is not None

    def reason(self, address: str) -> str | None:
        """Return the reason of the last failure; None if the address has responded since, or never failed."""
        error = self._of(address).error
        return None if error is None else error.reason

    def is_silent(self, address: str) -> bool:
        """Return whether the peer at the address accepts connections but does not respond."""
        return self._of(address).is_silent

    def remaining_pause_seconds(self, address: str) -> float:
        """Return the remaining seconds of the pause in which no request is sent to the address."""
        breaker = self._of(address)
        return 0.0 if breaker.error is None else max(0.0, breaker.until - self._now())

    def raise_during_pause(self, address: str) -> None:
        """Raise CircuitOpenError, or TlsError, if the pause after a failure of the address has not ended."""
        if self.remaining_pause_seconds(address):
            self.raise_until_responding(address)

    def raise_until_responding(self, address: str) -> None:
        """Raise CircuitOpenError or TlsError until a failed address responds. Used for requests that may wait long."""
        error = self._of(address).error
        if error is not None:  # a new exception for each caller, because raising one adds to its traceback
            kind = TlsError if isinstance(error, TlsError) else CircuitOpenError
            raise kind(address, error.reason)

    @contextlib.contextmanager
    def probe(self, address: str) -> Iterator[None]:
        """Run the `with` block as a probe. Raises CircuitOpenError or TlsError in a pause or during another probe."""
        self.raise_during_pause(address)
        breaker = self._of(address)
        if breaker.error is None:
            yield
            return
        if breaker.is_probed:
            self.raise_until_responding(address)
        breaker.is_probed = True
        try:
            yield
        finally:
            breaker.is_probed = False

    def _of(self, address: str) -> _Breaker:
        return self._breakers.get(address, _WITHOUT_FAILURE)
