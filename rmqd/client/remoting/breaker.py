"""A circuit breaker for each address: what does not answer is left alone, so that nobody waits for it.

Closed: nothing is known against the address. Open: it failed, and requests fail at once. Half open: the pause is over,
and one request finds out how it is while the others still fail at once. Any answer closes it. Pauses double from one
failure to the next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rmqd.backoff import doubled, spread
from rmqd.errors import CircuitOpenError, RemotingConnectError, RemotingError, TlsError

FIRST_SECONDS = 0.2
MOST_SECONDS = 5.0
MOST_BROKEN_SECONDS = 0.5  # other members take the queues of one whose broker has not heard from it for a second
FORGET_SECONDS = 60.0  # how long connections that broke count, whatever the address answers between them


class _Breaker:
    __slots__ = ("broke_at", "broken", "error", "failures", "is_probed", "is_silent", "losses", "until")

    def __init__(self) -> None:
        self.error: RemotingError | None = None
        """The last failure; None where only connections were lost."""
        self.failures = 0
        self.losses = 0
        """Connections that ended without an answer."""
        self.broken = 0
        """Connections that broke, none of them long after the one before."""
        self.broke_at = 0.0
        self.is_silent = False
        """It takes connections, and does not answer."""
        self.is_probed = False
        self.until = 0.0


class Breakers:
    """What is known against addresses. Times are those of `now`, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._breakers: dict[str, _Breaker] = {}

    def failed(self, address: str, error: RemotingError) -> None:
        """No connection could be made, or nothing was heard on it: leave the address alone for a while, twice as long
        as the last time, up to 5 s, and a random part less."""
        breaker = self._breakers.setdefault(address, _Breaker())
        self._rest(breaker, error, doubled(FIRST_SECONDS, breaker.failures + 1, MOST_SECONDS))
        breaker.failures += 1

    def lost(self, address: str) -> bool:
        """A connection ended without an answer; says whether that is so again."""
        breaker = self._breakers.setdefault(address, _Breaker())
        breaker.losses += 1
        return breaker.losses > 1

    def broke(self, address: str, error: RemotingError) -> None:
        """A connection brought what cannot be decoded, or was closed as soon as it had answered.

        The first one is nothing. After each further one within a minute the address is left alone for a while, also
        where it answered in between: what answers every heartbeat, and everything else with rubbish, is not to be
        connected to without a pause. Such pauses are short. On a bad line connections break again and again, and a
        broker strikes a member off its list with each of them, until the next heartbeat.
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
        """The address is well: if it fails from now on, that is something new."""
        former = self._breakers.pop(address, None)
        if former is not None and former.broken and self._now() - former.broke_at < FORGET_SECONDS:
            breaker = self._breakers[address] = _Breaker()
            breaker.broken, breaker.broke_at = former.broken, former.broke_at

    def forget(self) -> None:
        """Begin anew with all addresses."""
        self._breakers.clear()

    def is_open(self, address: str) -> bool:
        """Whether the address failed, and has not answered since."""
        breaker = self._breakers.get(address)
        return breaker is not None and breaker.error is not None

    def reason(self, address: str) -> str | None:
        """Why an address is left alone, or was until just now; None where nothing is known against it."""
        breaker = self._breakers.get(address)
        return None if breaker is None or breaker.error is None else breaker.error.reason

    def is_silent(self, address: str) -> bool:
        """Whether it takes connections, and does not answer."""
        breaker = self._breakers.get(address)
        return breaker is not None and breaker.is_silent

    def rest_seconds(self, address: str) -> float:
        """For how many seconds no request is sent to the address."""
        breaker = self._breakers.get(address)
        return 0.0 if breaker is None or breaker.error is None else max(0.0, breaker.until - self._now())

    def check_rest(self, address: str) -> None:
        """Raise what says why the address is left alone now."""
        breaker = self._breakers.get(address)
        if breaker is not None and breaker.error is not None and self._now() < breaker.until:
            raise _open(address, breaker.error)

    def check_answers(self, address: str) -> None:
        """Raise that as well while nobody has heard from the address since: for requests that may take long."""
        breaker = self._breakers.get(address)
        if breaker is not None and breaker.error is not None:
            raise _open(address, breaker.error)

    @contextlib.contextmanager
    def probe(self, address: str) -> Iterator[None]:
        """Let one request find out how a silent address is; raises for all others meanwhile."""
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
    """A new one each time: it is raised by several, who each add their traceback."""
    return TlsError(address, error.reason) if isinstance(error, TlsError) else CircuitOpenError(address, error.reason)
