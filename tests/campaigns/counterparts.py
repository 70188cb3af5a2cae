"""What handlers write to in the campaign `handlers`: each can be killed, started again, and asked what it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol, Self

from tests.rocketmq import RealCluster
from tests.servers.http_sink import HttpSink
from tests.servers.postgresql import PostgresqlServer
from tests.servers.redis import RedisServer


class Counterpart(Protocol):
    """One other system. As a context manager it runs until the end of the block."""

    plugin: str
    is_once: bool
    """Whether the handler promises that it has each key once."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def options(self) -> dict[str, Any]:
        """The handler's options."""

    def kill(self) -> None:
        """kill -9."""

    def start(self) -> None:
        """Start it again, with what it had."""

    def arrived(self) -> Counter[str]:
        """How often it has each key."""


class PostgresqlTable:
    """A table of a PostgreSQL, with a unique key or without."""

    plugin = "postgresql"

    def __init__(self, mode: str, *, key: bool) -> None:
        self.is_once = key
        self._mode = mode
        self._server = PostgresqlServer()
        self._url = ""

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._url = self._server.database()
        constraint = "PRIMARY KEY" if self.is_once else ""
        self._server.execute(self._url, f"CREATE TABLE handled (key text {constraint}, msg_id text, body text)")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def options(self) -> dict[str, Any]:
        columns = {"key": "keys", "msg_id": "msg_id", "body": "body"}
        key = ["key"] if self.is_once else []
        return {"url": self._url, "table": "handled", "columns": columns, "mode": self._mode, "key": key}

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()

    def arrived(self) -> Counter[str]:
        return Counter(dict(self._server.execute(self._url, "SELECT key, count(*) FROM handled GROUP BY key")))


class WebhookSink:
    """An HTTP server that answers some calls with 503 or 429, with half an answer, or not at all."""

    plugin = "webhook"
    is_once = False

    def __init__(self) -> None:
        self._server = HttpSink()

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def options(self) -> dict[str, Any]:
        return {"url": self._server.url, "timeout": "500ms"}

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()

    def arrived(self) -> Counter[str]:
        return Counter(self._server.keys())


class RedisKey:
    """A stream or a list of a Redis, which remembers messages or not."""

    plugin = "redis"

    def __init__(self, mode: str, *, remembers: bool) -> None:
        self.is_once = remembers
        self._mode = mode
        self._server = RedisServer()

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def options(self) -> dict[str, Any]:
        what = {"fields": {"key": "keys"}} if self._mode == "stream" else {"value": "keys"}
        return {"url": self._server.url, "key": "handled", "mode": self._mode, **what} | (
            {"remember": "1h", "remember_by": "keys"} if self.is_once else {}
        )

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()

    def arrived(self) -> Counter[str]:
        with self._server.client() as client:
            if self._mode == "stream":
                return Counter(entry[b"key"].decode() for _, entry in client.xrange("handled"))
            return Counter(key.decode() for key in client.lrange("handled", 0, -1))


COUNTERPARTS: Final[dict[str, Callable[[RealCluster], Counterpart]]] = {
    "postgresql-insert": lambda _: PostgresqlTable("insert", key=True),
    "postgresql-upsert": lambda _: PostgresqlTable("upsert", key=True),
    "postgresql-copy": lambda _: PostgresqlTable("copy", key=True),
    "webhook": lambda _: WebhookSink(),
    "redis-stream": lambda _: RedisKey("stream", remembers=True),
    "redis-list": lambda _: RedisKey("list", remembers=False),
}
