"""The handler `redis`: one call of a Lua script adds all entries of a batch.

Scripts are atomic, so other clients never see half of a batch. But a script that fails keeps its earlier changes. So
the script adds an entry before it sets the entry's mark: a mark without an entry would lose the message. If there is a
mark, the script writes it again, because WAIT covers only writes of its connection, not the write of the entry.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from rmqd import Batch
from rmqd_handlers.away import (
    ON_INVALID,
    RETRY_FOR,
    CounterpartUnavailableError,
    OnInvalid,
    acknowledge_written,
    try_again,
    valid,
)
from rmqd_handlers.message_values import (
    InvalidBodyError,
    MessageValue,
    ParsedMessage,
    Value,
    as_bytes,
    as_text,
    parse_value,
)
from rmqd_handlers.option_kinds import MAX_CONNECTIONS, DurationSeconds, HandlerOptions, option, require

if TYPE_CHECKING:
    from redis.asyncio import Redis


SCRIPT: Final = """
local target, add, most, remember_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local at, entries = 4, (#KEYS - 1) / 2
for number = 2, entries + 1 do
    local count = tonumber(ARGV[at])
    if remember_ms == '0' or redis.call('EXISTS', KEYS[number], KEYS[number + entries]) == 0 then
        local parts = {}
        for place = 1, count do parts[place] = ARGV[at + place] end
        if add == 'XADD' and most ~= '0' then
            redis.call('XADD', target, 'MAXLEN', '~', most, '*', unpack(parts))
        elseif add == 'XADD' then
            redis.call('XADD', target, '*', unpack(parts))
        else
            redis.call(add, target, unpack(parts))
        end
        if remember_ms ~= '0' then redis.call('SET', KEYS[number], 1, 'PX', remember_ms) end
    else
        for _, mark in ipairs({KEYS[number], KEYS[number + entries]}) do
            local left = redis.call('PTTL', mark)
            if left > 0 then redis.call('PEXPIRE', mark, left) end
        end
    end
    at = at + count + 1
end
if most ~= '0' and add == 'RPUSH' then redis.call('LTRIM', target, -most, -1) end
if most ~= '0' and add == 'LPUSH' then redis.call('LTRIM', target, 0, most - 1) end
"""


@dataclass(frozen=True, slots=True)
class RedisEntry:
    mark: str
    """Name of the key that marks the message as added: the identity of its topic, and its value of `remember_by`."""
    former_mark: str
    """The mark that rmqd 0.1.0 set: the value of `remember_by` alone. In a replay it is the same as `mark`."""
    parts: tuple[bytes | str, ...]
    """Names and values of a stream's entry, or the one element of a list."""


FIELDS: Final[Mapping[str, Value]] = {
    name: parse_value(name) for name in ("body", "topic", "msg_id", "keys", "tags", "born_timestamp")
}
_TAG: Final = re.compile(r"\{[^}]+\}")
_SCHEMES: Final = ("redis://", "rediss://", "unix://")


class RedisHandler:
    """Adds each message to a Redis stream or list."""

    calls_limited_by: ClassVar[str] = "max_connections"

    class Options(HandlerOptions):
        url: SecretStr = Field(description="redis://user:password@host:6379/0; rediss:// with TLS; or unix:///path")
        key: str = Field(description="the key of the stream or the list", min_length=1)
        mode: Literal["stream", "list", "list_left"] = option(
            "stream", "stream: XADD; list: RPUSH, at its end; list_left: LPUSH, at its head"
        )
        fields: dict[str, MessageValue] = option(
            {},
            "for a stream, each field of an entry and its value: a JSON path into the body, a field such "
            "as msg_id, or properties.NAME; default: body, topic, msg_id, keys, tags and born_timestamp",
        )
        value: MessageValue | None = option(None, "for a list, the value of an element; default: the body")
        max_length: int = option(
            0, "maximum length: the oldest are dropped, in a stream with some delay; 0: no limit", ge=0
        )
        remember: DurationSeconds | None = option(
            None, "how long a redelivered message is skipped; default: it is added again"
        )
        remember_by: MessageValue = option(
            "msg_id", "the identity of a message in a group and topic; msg_id if the value is missing"
        )
        wait_replicas: int = option(0, "how many replicas must have a batch before it is acknowledged", ge=0)
        on_invalid: OnInvalid = ON_INVALID
        timeout: DurationSeconds = option(
            "5s", "timeout for connecting to Redis, for its responses, and for replicas", gt=0
        )
        max_connections: int = MAX_CONNECTIONS
        retry_for: DurationSeconds = RETRY_FOR

        @field_validator("url")
        @classmethod
        def _is_url(cls, url: SecretStr) -> SecretStr:
            if not url.get_secret_value().startswith(_SCHEMES):  # the client would connect to localhost
                raise ValueError(f"not a Redis URL; expected {', '.join(f'{one}...' for one in _SCHEMES)}")
            try:
                parts = urlsplit(url.get_secret_value())
                is_wrong = parts.scheme != "unix" and (parts.port == 0 or not re.fullmatch(r"/*\d*/*", parts.path))
            except ValueError:  # its text could contain the password
                is_wrong = True
            if is_wrong:  # with a wrong database the client would use database 0
                raise ValueError("the port or the database is not a number; expected redis://user:password@host:6379/0")
            return url

        @model_validator(mode="after")
        def _fit(self) -> Self:
            if self.mode == "stream" and self.value is not None:
                raise ValueError("value has no effect with mode: stream; use fields")
            if self.mode != "stream" and self.fields:
                raise ValueError("fields have no effect with mode: list; use value")
            if self.remember is not None and self.remember < 0.001:
                raise ValueError("remember is too short; expected at least 1ms")
            return self

    def __init__(self, options: Options) -> None:
        require("redis", "redis")
        self._options = options
        self._values = dict(options.fields or FIELDS)
        self._slots = asyncio.Semaphore(options.max_connections)
        self._home: Redis  # the client of the URL
        self._client: Redis  # the client of the cluster node with the key
        self._nodes: dict[tuple[str, int], Redis] = {}
        self._prefix = f"rmqd:{{{options.key}}}"  # the braces make a cluster keep the marks on the key's node

    async def start(self) -> None:
        """Connect now: a wrong password, or an unavailable Redis, fails the start instead of each message."""
        self._client = self._home = self._make_client()
        await self._client.ping()

    def _make_client(self) -> Redis:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        return Redis.from_url(
            self._options.url.get_secret_value(),
            max_connections=self._options.max_connections,
            socket_connect_timeout=self._options.timeout,
            # twice the timeout, because the command WAIT itself takes up to one timeout
            socket_timeout=self._options.timeout * (2 if self._options.wait_replicas else 1),
            retry=Retry(NoBackoff(), 0),  # no retries by the client, because `try_again` retries for a limited time
        )

    async def stop(self) -> None:
        for client in {self._home, self._client, *self._nodes.values()}:
            await client.aclose()

    async def handle(self, batch: Batch) -> None:
        from redis.exceptions import RedisError, ResponseError

        entries = [entry for _, entry in valid(batch, self._entry, self._options.on_invalid)]
        if entries:
            until = time.monotonic() + self._options.retry_for
            await try_again(
                lambda: self._add(entries, until),
                (RedisError, CounterpartUnavailableError),
                self._options.retry_for,
                "redis",
                # a plain ResponseError is permanent; its subclasses, such as OutOfMemoryError, may be temporary
                lambda error: type(error) is not ResponseError,
            )
            acknowledge_written(batch)

    def _entry(self, opened: ParsedMessage) -> RedisEntry:
        former = mark = ""
        if self._options.remember:
            value = self._options.remember_by(opened)
            identity = opened.message.identity
            text = "" if value is None else as_text(value)
            text = text if text.strip() else opened.message.msg_id
            mark = f"{identity}:{text}"
            former = mark if identity.replay else text  # a replay must add messages again despite former marks
        return RedisEntry(mark, former, tuple(self._parts(opened)))

    def _parts(self, opened: ParsedMessage) -> list[bytes | str]:
        if self._options.mode != "stream":
            return [as_bytes((self._options.value or FIELDS["body"]).required(opened))]
        parts: list[bytes | str] = []
        for name, of in self._values.items():
            value = of(opened)
            if value is not None:
                parts += [name, as_bytes(value)]
        if not parts:
            raise InvalidBodyError(f"the message has none of {', '.join(of.text for of in self._values.values())}")
        return parts

    def _arguments(self, entries: Sequence[RedisEntry]) -> list[bytes | str | int]:
        one = self._options
        marks = [*(entry.mark for entry in entries), *(entry.former_mark for entry in entries)]
        keys = [one.key, *(f"{self._prefix}:{mark}" for mark in marks)]
        add = {"stream": "XADD", "list": "RPUSH", "list_left": "LPUSH"}[one.mode]
        arguments: list[bytes | str | int] = [add, one.max_length, round((one.remember or 0) * 1000)]
        for entry in entries:
            arguments += [len(entry.parts), *entry.parts]
        return [SCRIPT, len(keys), *keys, *arguments]

    async def _add(self, entries: list[RedisEntry], until: float) -> None:
        """Add the entries once, and wait until `until` for replicas. Raises AwayError if too few replicas have them."""
        from redis.exceptions import ClusterCrossSlotError, MovedError, ReadOnlyError
        from redis.exceptions import ConnectionError as LostError

        # WAIT covers only commands on the same connection. If the connection breaks, the entries must be added again.
        async with self._slots, self._client.client() as connection:
            try:
                await _ask(connection, "EVAL", *self._arguments(entries))
            except ReadOnlyError:
                await self._client.connection_pool.disconnect()  # new connections may reach the new master
                raise
            except LostError:
                # in a cluster, the node may have failed: the node in the URL knows the key's new owner
                self._client = self._home
                raise
            except ClusterCrossSlotError:
                # the key itself contains braces, which select its node, so the marks need the same braces
                if tag := _TAG.search(self._options.key):
                    self._prefix = f"rmqd:{tag[0]}:{self._options.key}"
                raise
            except MovedError as error:
                self._go_to(error.host, error.port)
                raise
            if self._options.wait_replicas:
                left_seconds = until - time.monotonic()
                await try_again(
                    lambda: self._wait_replicas(connection), (CounterpartUnavailableError,), left_seconds, "redis"
                )

    def _go_to(self, host: str, port: int) -> None:
        """Send further commands to this cluster node, which has the key."""
        if (host, port) not in self._nodes:
            self._nodes[host, port] = client = self._make_client()
            # an empty host means the node that sent the response
            node = {"port": port, **({"host": host} if host else {})}
            client.connection_pool.connection_kwargs.update(node)
        self._client = self._nodes[host, port]

    async def _wait_replicas(self, connection: Redis) -> None:
        wanted = self._options.wait_replicas
        count = await _ask(connection, "WAIT", wanted, round(self._options.timeout * 1000))
        if count < wanted:
            raise CounterpartUnavailableError(f"only {count} of {wanted} replicas acknowledged the batch")


async def _ask(connection: Redis, *command: bytes | str | int) -> Any:
    return await connection.execute_command(*command)  # type: ignore[no-untyped-call]
