"""A run of all groups of the suite on one engine, and queries of its results."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rmqd.client.api.admin_requests import create_topic
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage, select_by_id
from rmqd.config.load import load_config
from rmqd.errors import RmqdError
from rmqd.wire.topics import dlq_topic, retry_topic
from tests.waiting import eventually, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

HERE: Final = Path(__file__).parent
TOP: Final = HERE.parents[2]
PREFIX: Final = "parity"
SECONDS: Final = 120
QUEUES: Final = 2
TRIES: Final = 3


@dataclass(frozen=True)
class Attempt:
    """One call of a handler with one message."""

    id: str
    times: int
    at: float
    more: Mapping[str, Any]


@dataclass(frozen=True)
class Sent:
    """A message with its script, topic and queue."""

    topic: str
    id: str
    do: tuple[str, ...] = ("ok",)
    queue: int = 0
    tags: str = ""
    properties: Mapping[str, str] | None = None


class ParityRun:
    """One engine on one broker. Methods use the suite's names; on the broker these start with `prefix`."""

    def __init__(self, engine: str, nameserver: str, prefix: str, folder: Path) -> None:
        self.engine = engine
        self._nameserver = nameserver
        self._prefix = prefix
        self._folder = folder
        self._environment = {**os.environ, "NAMESERVER": nameserver, "FOLDER": str(folder), "PYTHONPATH": str(TOP)}
        config = folder / "config"
        shutil.copytree(HERE / "config", config)
        for file in config.rglob("*.yaml"):
            file.write_text(file.read_text().replace(PREFIX + "_", prefix + "_"))
        overrides = [] if engine == "local" else [f"groups.{name}.engine=spark" for name in self._groups(config)]
        self._overrides = overrides
        self._queries: list[StreamingQuery] = []
        self.config = load_config(config, overrides, environ=self._environment)

    def send(self, messages: list[Sent]) -> None:
        """Create the topics of all groups, and send messages one after another."""

        async def sending(client: ClientInstance) -> None:
            topics = sorted({topic for group in self.config.groups.values() for topic in group.subscriptions})
            await client.routes.refresh("TBW102")
            (master,) = [replicas[0] for replicas in client.routes.brokers().values()]
            for topic in topics:
                await create_topic(client.remoting, master, topic, QUEUES)
            for topic in topics:
                await _known(client, topic)
            for one in messages:
                body = json.dumps({"id": one.id, "do": one.do}).encode()
                topic = f"{self._prefix}_{one.topic}"
                message = OutgoingMessage(topic, body, tags=one.tags, properties=dict(one.properties or {}))
                await client.producer.send(message, selector=select_by_id(one.queue, ""))

        self._ask(sending)

    @contextlib.contextmanager
    def running(self, spark: SparkSession | None) -> Iterator[None]:
        """Run all groups during the block."""
        with self._on_spark(spark) if spark is not None else self._in_daemon():
            yield

    def attempts(self, group: str) -> list[Attempt]:
        """The attempts of a group, in the order of its ledger."""
        ledger = self._folder / group
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        return [Attempt(one["id"], one["times"], one["at"], one) for one in map(json.loads, lines)]

    def until(self, expected: Mapping[str, int]) -> None:
        """Wait until groups made this number of attempts and committed their topics completely."""
        left: dict[str, object] = {}

        def is_done() -> bool:
            self._alive()
            counts = {name: (len(self.attempts(name)), most) for name, most in expected.items()}
            missing = {name: each for name, each in counts.items() if each[0] < each[1]}
            left["attempts of those expected"] = missing
            left["not committed"] = {} if missing else self.behind(expected)
            return not any(left.values())

        try:
            wait_until(is_done, "all attempts are made and committed", SECONDS)
        except AssertionError as error:
            error.add_note(f"{left}")
            raise

    def behind(self, groups: Mapping[str, int]) -> dict[str, dict[str, tuple[int | None, int]]]:
        """By group, the queues whose committed offset is not the end of the queue."""
        found = {name: self.offsets(name) for name in groups}
        late = {
            name: {queue: one for queue, one in queues.items() if (one[0] or 0) != one[1]}
            for name, queues in found.items()
        }
        return {name: queues for name, queues in late.items() if queues}

    def offsets(self, group: str) -> dict[str, tuple[int | None, int]]:
        """The committed offset and the end of each queue of the group's topics and its retry topic."""
        from rmqd.spark.session.spark_access import ClientAccess
        from rmqd.spark.session.spark_cluster import cluster_of, values_or_raise

        name = f"{self._prefix}_{group}"
        cluster = cluster_of(ClientAccess(self.config.client_options()))
        topics = (*self.config.groups[name].subscriptions, retry_topic(name))
        queues = [queue for found in cluster.queues(topics).values.values() for queue in found]
        committed, ends = (
            values_or_raise(cluster.committed_offsets(name, queues)),
            values_or_raise(cluster.max_offsets(queues)),
        )
        return {str(queue): (committed[queue], ends[queue]) for queue in queues}

    def dead_letters(self, group: str) -> dict[str, str]:
        """The reasons of the group's dead letters, by message id."""
        from pyspark.sql.types import StructType

        from rmqd.spark.source.source_format import RocketMQSource

        topic = dlq_topic(f"{self._prefix}_{group}")
        columns = {"columns": "body,properties"}
        options = {"nameserver": self._nameserver, "subscribe": topic, **columns}
        reader = RocketMQSource(options).reader(StructType())
        batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        return {json.loads(row["body"])["id"]: dict(row["properties"]).get("RMQD_REASON", "") for row in rows}

    @contextlib.contextmanager
    def _in_daemon(self) -> Iterator[None]:
        command = [sys.executable, "-m", "rmqd", "run", "--config", str(self._folder / "config")]
        with (self._folder / "log").open("w") as log:
            daemon = subprocess.Popen(command, env=self._environment, stderr=log, cwd=self._folder)
            try:
                yield
                daemon.send_signal(signal.SIGTERM)
                assert daemon.wait(30) == 0
            finally:
                daemon.kill()
                daemon.wait()

    @contextlib.contextmanager
    def _on_spark(self, spark: SparkSession) -> Iterator[None]:
        try:
            # one at a time: on a busy machine, simultaneous new processes connect too late for Spark's timeout
            for name in self.config.groups:
                self._queries.append(self._start(spark, name))
                self._alive()
            yield
            (self._folder / "pause").touch()
            self._alive()
        finally:
            for query in self._queries:
                query.stop()

    def _start(self, spark: SparkSession, name: str) -> StreamingQuery:
        """Start a group's query and wait for its first batch. Like the daemon, try again after Spark's timeout."""
        from rmqd.spark.handlers.group_source import handler_query
        from rmqd.spark.session.group_spec import GroupSpec

        for _ in range(TRIES):
            begun = threading.Event()
            query = handler_query(
                spark,
                GroupSpec(name, self.config),
                checkpoint=str(self._folder / "checkpoints" / name),
                starting=None,
                pause_file=str(self._folder / "pause"),
                on_batch=lambda outcomes, begun=begun: begun.set(),  # type: ignore[misc]
            )
            while not begun.wait(0.1) and query.isActive:
                pass
            if query.isActive or "failed to connect back" not in str(query.exception()):
                break
        return query

    def _alive(self) -> None:
        failed = {query.name: str(query.exception()) for query in self._queries if not query.isActive}
        assert not failed, failed

    @staticmethod
    def _groups(config: Path) -> list[str]:
        import yaml

        files = (config / "groups").glob("*.yaml")
        return [name for file in files for name in yaml.safe_load(file.read_text())]

    def _ask(self, work: Callable[[ClientInstance], Any]) -> None:
        async def asking() -> None:
            client = ClientInstance(ClientOptions(nameservers=tuple(self._nameserver.split(";"))))
            try:
                await work(client)
            finally:
                await client.close()

        asyncio.run(asking())


async def _known(client: ClientInstance, topic: str) -> None:
    """Wait until the name server returns all queues of a topic."""

    async def is_known() -> bool:
        with contextlib.suppress(RmqdError):
            await client.routes.refresh(topic)
            return len(client.routes.queues(topic)) == QUEUES
        return False

    await eventually(is_known, f"all queues of {topic} are known", 20)
