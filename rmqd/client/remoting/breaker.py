"""A circuit breaker for each address: an address that failed is left alone for a while, so that nobody waits for it.

A breaker has the three usual states. Closed: nothing is known against the address. Open: the address failed, and
requests to it fail at once until the pause is over. Half open: the pause is over, and one request, the probe, finds out
whether the address answers, while the others still fail at once. Any answer closes the breaker. Pauses double from one
failure to the next, and are spread, so that clients that lost the same broker do not all come back at once.

What counts is kept apart, because it means different things:

- A *failure*: no connection could be made, or the peer was silent. This opens the breaker.
- A *loss*: a connection ended before the peer had answered anything. Servers do that if TLS settings do not fit. One
  loss is ignored; the caller treats the second one in a row as a failure.
- A *break*: a connection brought bytes that cannot be decoded, or the peer answered on it and closed it within its
  first second. An answer on the next connection does not clear the count, since a bad line lets most answers through.
  Pauses after breaks are short: a broker removes a client from its lists when its connection ends, and after a second
  without a heartbeat the other members take over its queues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rmqd.backoff import doubled, spread
from rmqd.clock import Clock
from rmqd.errors import CircuitOpenError, RemotingConnectError, RemotingError, TlsError

FIRST_SECONDS = 0.2
MOST_SECONDS = 5.0
MOST_BROKEN_SECONDS = 0.5  # below the second after which other members take over the queues of a member that is missing
FORGET_SECONDS = 60.0  # for which a break counts


class _Breaker:
    """What is known against one address."""

    __slots__ = ("broke_at", "broken", "error", "failed_at", "failures", "is_probed", "is_silent", "losses", "until")

    def __init__(self) -> None:
        self.error: RemotingError | None = None
        """The last failure; None where only connections were lost."""
        self.failures = 0
        self.failed_at = float("-inf")
        self.losses = 0
        """Connections that ended without an answer."""
        self.broken = 0
        """Breaks, none of them more than FORGET_SECONDS after the one before."""
        self.broke_at = 0.0
        self.is_silent = False
        """Whether the last failure was a silence: the peer takes connections, and does not answer."""
        self.is_probed = False
        self.until = 0.0


class Breakers:
    """The breakers of all addresses of one client."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._breakers: dict[str, _Breaker] = {}

    def failed(self, address: str, error: RemotingError) -> None:
        """Note a failure, and open the breaker: for twice as long as the last time, up to MOST_SECONDS."""
        breaker = self._breakers.setdefault(address, _Breaker())
        self._rest(breaker, error, doubled(FIRST_SECONDS, breaker.failures + 1, MOST_SECONDS))
        breaker.failures, breaker.failed_at = breaker.failures + 1, self._now()

    def failed_since(self, address: str, asked_at: float) -> bool:
        """Whether a failure was noted, and no answer since, after something was asked: it tells nothing new then."""
        breaker = self._breakers.get(address)
        return breaker is not None and breaker.failed_at >= asked_at

    def lost(self, address: str) -> bool:
        """Note a loss. Returns whether it is not the first one since the address last answered."""
        breaker = self._breakers.setdefault(address, _Breaker())
        breaker.losses += 1
        return breaker.losses > 1

    def broke(self, address: str, error: RemotingError) -> None:
        """Note a break, and open the breaker if there was another one within a minute.

        That holds although the address has answered in between: a server that answers every heartbeat and sends
        rubbish otherwise must not be connected to again and again without a pause.
        """
        breaker, now = self._breakers.setdefault(address, _Breaker()), self._now()
        breaker.broken = breaker.broken + 1 if now - breaker.broke_at < FORGET_SECONDS else 1
        breaker.broke_at = now
        if breaker.broken > 1:
            self._rest(breaker, error, doubled(FIRST_SECONDS, breaker.broken - 1, MOST_BROKEN_SECONDS))

    def _rest(self, breaker: _Breaker, error: RemotingError, pause_seconds: float) -> None:
        breaker.error = error
        breaker.is_silent = not isinstance(error, RemotingConnectError)
        breaker.until = self._now() + spread(pause_seconds, 0.5, 1.0)

    def answered(self, address: str) -> None:
        """Close the breaker. Only breaks within the last minute are remembered."""
        former = self._breakers.pop(address, None)
        if former is not None and former.broken and self._now() - former.broke_at < FORGET_SECONDS:
            breaker = self._breakers[address] = _Breaker()
            breaker.broken, breaker.broke_at = former.broken, former.broke_at

    def forget(self) -> None:
        """Close all breakers, and remember nothing."""
        self._breakers.clear()

    def is_open(self, address: str) -> bool:
        """Whether the address failed and has not answered since, whether or not its pause is over."""
        breaker = self._breakers.get(address)
        return breaker is not None and breaker.error is not None

    def reason(self, address: str) -> str | None:
        """The reason of the last failure; None if the address has answered since, or never failed."""
        breaker = self._breakers.get(address)
        return None if breaker is None or breaker.error is None else breaker.error.reason

    def is_silent(self, address: str) -> bool:
        """Whether the peer at the address takes connections and does not answer."""
        breaker = self._breakers.get(address)
        return breaker is not None and breaker.is_silent

    def rest_seconds(self, address: str) -> float:
        """The rest of the pause in which no request is sent to the address."""
        breaker = self._breakers.get(address)
        return 0.0 if breaker is None or breaker.error is None else max(0.0, breaker.until - self._now())

    def check_rest(self, address: str) -> None:
        """Raise CircuitOpenError, or TlsError, during the pause after a failure."""
        breaker = self._breakers.get(address)
        if breaker is not None and breaker.error is not None and self._now() < breaker.until:
            raise _open(address, breaker.error)

    def check_answers(self, address: str) -> None:
        """Raise the same as long as the address has not answered since: for requests that may wait for long."""
        breaker = self._breakers.get(address)
        if breaker is not None and breaker.error is not None:
            raise _open(address, breaker.error)

    @contextlib.contextmanager
    def probe(self, address: str) -> Iterator[None]:
        """Enter as the one request that finds out whether a silent peer answers. Raises for any other meanwhile."""
        self.check_rest(address)
        breaker = self._breakers.get(address)
        if breaker is None or breaker.error is None:
            yield
            return
        if breaker.is_probed:
            raise _open(address, breaker.error)
        breaker.is_probed = True
        try:
            yield
        finally:
            breaker.is_probed = False


def _open(address: str, error: RemotingError) -> RemotingConnectError:
    """A new exception for each caller, since raising one adds to its traceback."""
    return TlsError(address, error.reason) if isinstance(error, TlsError) else CircuitOpenError(address, error.reason)
