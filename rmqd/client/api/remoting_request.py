"""The common part of all requests, and `SharedCalls`, which shares one call among many callers.

Many parts of a client may request the same thing at the same time. For example, a hundred queues lose their broker, and
each requests a fresh route. One request should serve all of them. But a caller must not get the result of a request
that started before the caller asked, because the result may not show the change that made the caller ask.

So each caller draws a number from one counter, and waits for the lock of its key. When the caller holds the lock, it
compares this number with the number that the last finished call drew at its start. If the call started later, the
caller returns the call's result. Otherwise the caller draws a second number, which marks the start of a new call, and
makes this call. So many callers at once cause at most two calls: the running call, and one call for all callers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Generic, TypeVar

from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors.broker_errors import BrokerError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.request_header import RequestHeader

REQUEST_TIMEOUT_SECONDS = 3.0  # Java: mqClientApiTimeout
ADMIN_TIMEOUT_SECONDS = 5.0  # Java: DefaultMQAdminExt's timeoutMillis
SUCCESS = frozenset({ResponseCode.SUCCESS})


async def request(
    remoting: RemotingClient,
    address: str,
    header: RequestHeader | RequestCode,
    body: bytes = b"",
    *,
    extra_fields: Mapping[str, str] | None = None,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    accepted: frozenset[ResponseCode] = SUCCESS,
) -> RemotingCommand:
    """Send a request and return its response. A response code outside `accepted` raises the BrokerError of the code.

    `header` may be a plain request code if the request has no header fields.
    """
    code, ext_fields = (header, {}) if isinstance(header, RequestCode) else (header.code, header.ext_fields())
    if extra_fields:
        ext_fields = {**ext_fields, **extra_fields}
    reply = await remoting.invoke(address, code, ext_fields, body, timeout_seconds)
    if reply.code not in accepted:
        raise BrokerError.of(reply.code, reply.remark, address, code)
    return reply


async def admin_request(
    remoting: RemotingClient, address: str, header: RequestHeader | RequestCode, body: bytes = b""
) -> bytes:
    """Send a request with the longer timeout of operators' requests, and return the body of the response."""
    return (await request(remoting, address, header, body, timeout_seconds=ADMIN_TIMEOUT_SECONDS)).body


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Key(Generic[T]):
    __slots__ = ("lock", "outcome", "started", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        self.started = -1
        self.outcome: T | None = None


class SharedCalls(Generic[K, T]):
    """Calls of `work(key)` whose results are shared by all callers that wait for the same key.

    A caller gets the result of a call that started after the caller asked, so the result is never outdated. No tasks
    are started: one of the callers runs `work`, and if it is cancelled, the next caller runs it. If `work` raises, only
    the caller that ran it gets the error, and the next caller tries again. So `work` should return an error that
    concerns all callers instead of raising it.
    """

    def __init__(self, work: Callable[[K], Awaitable[T]]) -> None:
        self._work = work
        self._keys: dict[K, _Key[T]] = {}
        self._ticks = itertools.count()

    def is_running(self, key: K) -> bool:
        """Return whether a call for the key is running, or callers wait for one."""
        return key in self._keys

    async def wait_for_earlier(self, key: K) -> None:
        """Wait until all earlier calls for the key have ended. Does not start a call."""
        entry = self._keys.get(key)
        if entry is not None:
            async with entry.lock:
                pass

    async def __call__(self, key: K) -> T:
        """Return the result of a call of `work(key)` that starts from now on, made here or by another caller."""
        asked = next(self._ticks)
        entry = self._keys.get(key)
        if entry is None:
            entry = self._keys[key] = _Key()
        entry.users += 1
        try:
            async with entry.lock:
                if entry.started > asked:
                    return entry.outcome  # type: ignore[return-value]  # set by the call that set `started`
                started = next(self._ticks)
                outcome = await self._work(key)
                entry.started, entry.outcome = started, outcome
                return outcome
        finally:
            entry.users -= 1
            if entry.users == 0:
                del self._keys[key]
