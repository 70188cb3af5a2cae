"""The connections to a server: TLS, kept clients, and how the response's status settles messages.

Each call uses a client with one connection, so that its cost does not depend on the number of connections. An httpx
client with many connections checks all of them whenever a call starts or ends. It also assigns one idle connection to
several calls that start together, and all but one search again: with 64 concurrent calls this is twelve times the work.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, SecretStr, model_validator

from rmqd_handlers.faults import HTTP_STATUSES
from rmqd_handlers.option_kinds import HandlerOptions, option

if TYPE_CHECKING:
    import httpx


class Tls(HandlerOptions):
    """The TLS settings of a webhook, with the keys of `client.tls`."""

    ca_file: Path | None = option(None, "PEM file of the authorities to trust; default: the system's")
    cert_file: Path | None = option(None, "PEM file of this client's certificate")
    key_file: Path | None = option(None, "PEM file of this client's key")
    key_password: SecretStr | None = option(None, "password of key_file")
    verify: bool = option(True, "check the server's certificate and host name")

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs cert_file")
        return self

    def context(self) -> ssl.SSLContext:
        """Return the SSL context for these settings. Raises OSError or ssl.SSLError for unusable files."""
        for file in filter(None, (self.ca_file, self.cert_file, self.key_file)):
            file.open("rb").close()  # errors of the module ssl do not name the file
        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file is not None:
            password = self.key_password.get_secret_value() if self.key_password is not None else None
            context.load_cert_chain(self.cert_file, self.key_file, password)
        return context


IDLE_SECONDS: Final = 5.0
"""How long an idle connection is kept, as in httpx: less than most servers keep it."""


class Connections:
    """At most `most` clients, each for one call at a time. `make` creates a client with one connection."""

    def __init__(self, make: Callable[[], httpx.AsyncClient], most: int) -> None:
        self._make = make
        self._slots = asyncio.Semaphore(most)
        self._idle: deque[tuple[float, httpx.AsyncClient]] = deque()
        """Idle clients, each with the monotonic time of its last use. The longest idle client is first."""

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Yield a client for exclusive use in the block. Waits if all clients are in use.

        The most recently used client is chosen, so that surplus clients stay idle and are closed.
        """
        async with self._slots:
            client = self._idle.pop()[1] if self._idle else self._make()
            try:
                yield client
            except BaseException:
                # after an interrupted call, the connection may stay in use, and the next call would wait forever
                await client.aclose()
                raise
            self._idle.append((time.monotonic(), client))
            await self.close(IDLE_SECONDS)

    async def close(self, idle_seconds: float = -1.0) -> None:
        """Close the clients that have been idle for longer than `idle_seconds`; by default all idle clients."""
        while self._idle and time.monotonic() - self._idle[0][0] > idle_seconds:
            await self._idle.popleft()[1].aclose()


Action = Literal["ack", "wait", "retry", "dead_letter"]

DEFAULTS: Final[Mapping[str, Action]] = {"2xx": "ack", **dict.fromkeys(map(str, HTTP_STATUSES), "dead_letter")}
"""All other statuses mean `wait`, including 401, 403 and 404, which indicate an error in the options or the server."""

DELAYS_SECONDS: Final[tuple[int, ...]] = (1, 5, 10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30, 60, 120)))
"""RocketMQ's delay levels from level 1, with a broker's default messageDelayLevel."""


def _status(value: object) -> object:
    return str(value) if isinstance(value, int) else value  # YAML parses 404 as a number


def _checked(pattern: str) -> str:
    if re.fullmatch(r"[1-5](xx|[0-9]{2})", pattern) is None:
        raise ValueError(f"{pattern!r} is not a status; expected one such as 404, or a class such as 5xx")
    return pattern


Status = Annotated[str, BeforeValidator(_status, json_schema_input_type=str | int), AfterValidator(_checked)]


def action_for(status: int, policy: Mapping[str, Action]) -> Action:
    """Return the policy's action for this status, else for its class such as 5xx, else the default action."""
    kind = f"{status // 100}xx"
    for table in (policy, DEFAULTS):
        for pattern in (str(status), kind):
            if pattern in table:
                return table[pattern]
    return "wait"


def retry_after_seconds(header: str | None) -> float:
    """Return the delay in the header Retry-After, which is a number or a date; 0 if it is missing or invalid.

    The delay is at most the longest delay level, so that a server cannot delay messages for days.
    """
    if header is None:
        return 0.0
    if re.fullmatch(r"[0-9]{1,9}", header.strip()):
        return min(float(header), DELAYS_SECONDS[-1])
    try:
        at = parsedate_to_datetime(header)
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        seconds = (at - datetime.now(UTC)).total_seconds()
    except (ValueError, OverflowError):  # OverflowError: a time zone thousands of years away
        return 0.0
    return min(max(0.0, seconds), DELAYS_SECONDS[-1])


def delay_level(seconds: float) -> int:
    """Return the first delay level that is at least `seconds` long, else the longest level."""
    levels = enumerate(DELAYS_SECONDS, 1)
    return next((level for level, delay in levels if delay >= seconds), len(DELAYS_SECONDS))
