"""The systems that handlers write to in the campaign `handlers`: each can be killed, restarted and queried."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.handler_api.leases.lease_opening import StoreName
from rmqd.wire.message_queue import MessageQueue
from tests.nightly.campaigns.durability_load import pull
from tests.nightly.campaigns.parquet_files import ParquetFiles
from tests.nightly.servers.http_sink import HttpSink
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.offsets import Queue
from tests.rocketmq.spec import ClusterSpec
from tests.servers.kafka import KafkaServer
from tests.servers.mariadb import MariadbServer
from tests.servers.postgresql import PostgresqlServer
from tests.servers.process import ServerProcess
from tests.servers.redis import RedisServer

TOPIC: Final = "handled"
QUEUES: Final = 4


class Counterpart(Protocol):
    """An external system. As a context manager it runs until the end of the block."""

    plugin: str
    is_once: bool
    """Whether the handler promises to store each key once."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def options(self) -> dict[str, Any]:
        """The handler's options."""

    def kill(self) -> None:
        """kill -9."""

    def start(self) -> None:
        """Restart it with its data."""

    def arrived(self) -> Counter[str]:
        """Return how often the system has each key."""


S = TypeVar("S", bound=ServerProcess)


class _OneServer(Generic[S]):
    """A counterpart with one server."""

    def __init__(self, server: S) -> None:
        self._server = server

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


class PostgresqlTable(_OneServer[PostgresqlServer]):
    """A PostgreSQL table with or without a unique key."""

    plugin = "postgresql"

    def __init__(self, mode: str, *, key: bool) -> None:
        super().__init__(PostgresqlServer())
        self.is_once = key
        self._mode = mode
        self._url = ""

    def __enter__(self) -> Self:
        super().__enter__()
        self._url = self._server.database()
        constraint = "PRIMARY KEY" if self.is_once else ""
        self._server.execute(self._url, f"CREATE TABLE handled (key text {constraint}, msg_id text, body text)")
        return self

    def options(self) -> dict[str, Any]:
        columns = {"key": "keys", "msg_id": "msg_id", "body": "body"}
        key = ["key"] if self.is_once else []
        return {"url": self._url, "table": "handled", "columns": columns, "mode": self._mode, "key": key}

    def arrived(self) -> Counter[str]:
        return Counter(dict(self._server.execute(self._url, "SELECT key, count(*) FROM handled GROUP BY key")))


class MarkedTable(PostgresqlTable):
    """A table without a key. The test's own handler adds rows, with or without `message.once`."""

    plugin = "tests.nightly.campaigns.once_handler:OnceHandler"

    def __init__(self, *, marks: bool) -> None:
        super().__init__("insert", key=False)
        self._marks = marks

    def __enter__(self) -> Self:
        super().__enter__()
        self.is_once = self._marks
        return self

    def options(self) -> dict[str, Any]:
        return {"url": self._url, "marks": self._marks}


class DeduplicatedTable(MarkedTable):
    """The same table with `deduplicate`: rmqd, not the handler, records the handled messages in a store.

    A row is added twice if a process dies, or the database's response is lost, between the row and the record. With
    `marks` one transaction has both.
    """

    def __init__(self, store: StoreName, *, marks: bool) -> None:
        super().__init__(marks=marks)
        self._store = store
        self._redis: RedisServer | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        if self._store == "redis":
            self._redis = RedisServer().__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._redis is not None:
            self._redis.close()
        super().__exit__(*raised)

    def group_keys(self) -> dict[str, Any]:
        """The group's additional keys. Batches have one message, because a batch is recorded as a whole."""
        urls = {"sqlite": "", "redis": self._redis and self._redis.url, "postgresql": self._url}
        return {
            "consume_message_batch_max_size": 1,
            "deduplicate": {"by": "msg_id", "store": self._store, "url": urls[self._store]},
        }


class OffsetsTable(MarkedTable):
    """The same table with the group's offsets in the database, in one transaction with the rows."""

    plugin = "tests.nightly.campaigns.once_handler:OffsetHandler"

    def __init__(self) -> None:
        super().__init__(marks=True)

    def options(self) -> dict[str, Any]:
        return {}

    def group_keys(self) -> dict[str, Any]:
        """The group's offset store."""
        plugin = "rmqd_handlers.postgresql:PostgresqlOffsets"
        return {"offset_store": {"plugin": plugin, "options": {"url": self._url}}}


class SqlTable(_OneServer[MariadbServer | PostgresqlServer]):
    """A MariaDB or PostgreSQL table that `sql` writes to, with a key or with `message.once`."""

    plugin = "sql"
    is_once = True

    def __init__(self, dialect: str, *, once: bool) -> None:
        super().__init__(MariadbServer() if dialect == "mariadb" else PostgresqlServer())
        self._once = once
        self._url = ""

    def __enter__(self) -> Self:
        super().__enter__()
        self._url = self._server.database()
        constraint = "" if self._once else "PRIMARY KEY"
        self._server.execute(self._url, f"CREATE TABLE handled (name varchar(99) {constraint}, msg_id text, body text)")
        return self

    def options(self) -> dict[str, Any]:
        return {
            "url": self._url.replace("postgresql:", "postgresql+psycopg:"),
            "table": "handled",
            "columns": {"name": "keys", "msg_id": "msg_id", "body": "body"},
            "key": [] if self._once else ["name"],
            "once": self._once,
        }

    def arrived(self) -> Counter[str]:
        return Counter(dict(self._server.execute(self._url, "SELECT name, count(*) FROM handled GROUP BY name")))


class WebhookSink(_OneServer[HttpSink]):
    """An HTTP server that answers some requests with 503 or 429, with half a response, or not at all."""

    plugin = "webhook"
    is_once = False

    def __init__(self) -> None:
        super().__init__(HttpSink())

    def options(self) -> dict[str, Any]:
        return {"url": self._server.url, "timeout": "500ms"}

    def arrived(self) -> Counter[str]:
        return Counter(self._server.keys())


class RedisKey(_OneServer[RedisServer]):
    """A Redis stream or list, with or without remembered messages."""

    plugin = "redis"

    def __init__(self, mode: str, *, remembers: bool) -> None:
        super().__init__(RedisServer())
        self.is_once = remembers
        self._mode = mode

    def options(self) -> dict[str, Any]:
        what = {"fields": {"key": "keys"}} if self._mode == "stream" else {"value": "keys"}
        return {"url": self._server.url, "key": "handled", "mode": self._mode, **what} | (
            {"remember": "1h", "remember_by": "keys"} if self.is_once else {}
        )

    def arrived(self) -> Counter[str]:
        with self._server.client() as client:
            if self._mode == "stream":
                return Counter(entry[b"key"].decode() for _, entry in client.xrange("handled"))
            return Counter(key.decode() for key in client.lrange("handled", 0, -1))


class CeleryQueue(_OneServer[RedisServer]):
    """A Celery queue in a Redis broker, without workers."""

    plugin = "celery"
    is_once = False

    def __init__(self) -> None:
        super().__init__(RedisServer())

    def options(self) -> dict[str, Any]:
        return {"url": self._server.url, "task": "handled", "queue": TOPIC, "args": ["keys"]}

    def arrived(self) -> Counter[str]:
        with self._server.client() as client:
            tasks = map(json.loads, client.lrange(TOPIC, 0, -1))
            return Counter(json.loads(base64.b64decode(task["body"]))[0][0] for task in tasks)


class KafkaTopic:
    """A Kafka topic whose only broker is killed."""

    plugin = "kafka"
    is_once = False

    def __init__(self, server: KafkaServer | None = None) -> None:
        self._owned = server is None
        self._server = server or KafkaServer()
        self._topic = ""
        self._read: dict[int, int] = {}
        self._arrived: Counter[str] = Counter()

    def __enter__(self) -> Self:
        if self._owned:
            self._server.__enter__()
        self._topic = self._server.create_topic(QUEUES)
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned:
            self._server.close()

    def options(self) -> dict[str, Any]:
        return {"bootstrap_servers": self._server.address, "topic": self._topic}

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()

    def arrived(self) -> Counter[str]:
        for record in self._server.records(self._topic, self._read):
            self._read[record.partition() or 0] = (record.offset() or 0) + 1
            self._arrived[(record.key() or b"").decode()] += 1
        return self._arrived


class OtherTopic:
    """A topic of another cluster whose broker is killed. The cluster is either given or started here."""

    plugin = "rocketmq"
    is_once = False

    def __init__(self, cluster: RealCluster | None = None) -> None:
        self._owned = cluster is None
        self._cluster = cluster or RealCluster.start(ClusterSpec(heap="384m"))
        self._read: dict[Queue, int] = {}
        self._arrived: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._cluster.create_topic(TOPIC, QUEUES)
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned:
            self._cluster.stop()

    def options(self) -> dict[str, Any]:
        return {"nameserver": self._cluster.nameservers, "topic": TOPIC}

    def kill(self) -> None:
        self._cluster.kill()

    def start(self) -> None:
        self._cluster.restart()

    def arrived(self) -> Counter[str]:
        asyncio.run(self._read_on())
        return self._arrived

    async def _read_on(self) -> None:
        remoting = RemotingClient()
        try:
            for queue, address in offsets.queues(self._cluster, TOPIC).items():
                place = MessageQueue(TOPIC, queue.broker, queue.queue_id)
                while True:
                    at = self._read.get(queue, 0)
                    _, messages = await pull(remoting, address, place, at)
                    if not messages:
                        break
                    self._read[queue] = messages[-1].queue_offset + 1
                    self._arrived.update(message.keys or "" for message in messages)
        finally:
            await remoting.close()


COUNTERPARTS: Final[dict[str, Callable[[], Counterpart]]] = {
    "postgresql-insert": lambda: PostgresqlTable("insert", key=True),
    "postgresql-upsert": lambda: PostgresqlTable("upsert", key=True),
    "postgresql-copy": lambda: PostgresqlTable("copy", key=True),
    "once": lambda: MarkedTable(marks=True),
    "once-without": lambda: MarkedTable(marks=False),
    "deduplicate-sqlite": lambda: DeduplicatedTable("sqlite", marks=False),
    "deduplicate-redis": lambda: DeduplicatedTable("redis", marks=False),
    "deduplicate-postgresql": lambda: DeduplicatedTable("postgresql", marks=False),
    "deduplicate-sqlite-once": lambda: DeduplicatedTable("sqlite", marks=True),
    "deduplicate-redis-once": lambda: DeduplicatedTable("redis", marks=True),
    "deduplicate-postgresql-once": lambda: DeduplicatedTable("postgresql", marks=True),
    "offset-store-postgresql": OffsetsTable,
    "sql-mariadb": lambda: SqlTable("mariadb", once=False),
    "sql-mariadb-once": lambda: SqlTable("mariadb", once=True),
    "sql-postgresql-once": lambda: SqlTable("postgresql", once=True),
    "webhook": WebhookSink,
    "redis-stream": lambda: RedisKey("stream", remembers=True),
    "redis-list": lambda: RedisKey("list", remembers=False),
    "rocketmq": OtherTopic,
    "kafka": KafkaTopic,
    "celery": CeleryQueue,
    "parquet": ParquetFiles,
}
