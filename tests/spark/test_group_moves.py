"""A group on both engines in turn, and an operator's resets, with a real Spark over the embedded broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rmqd.clock import SystemClock
from rmqd.config.model.root import RootConfig
from rmqd.spark.group_order import GroupOrder
from tests.cli.command import rmqd
from tests.consumer.members import member
from tests.integration.ledger_handler import LedgerHandler
from tests.rocketmq import ledger
from tests.rocketmq.ledger import FINISH
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need
from tests.waiting import eventually

need("pyspark", "pyarrow")

from rmqd.spark.engine.group_run import GroupRun  # noqa: E402
from rmqd.spark.engine.listener import BatchProgress, ProgressListener  # noqa: E402
from rmqd.spark.engine.spark_parts import SparkParts  # noqa: E402
from rmqd.spark.handlers.outcome import OnBatch  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqd.spark.engine.generations import Generation

GROUP, TOPIC = "mover", "orders"
SECONDS = 120

pytestmark = pytest.mark.timeout(400)  # of which little is needed where nothing else runs


class Parts(SparkParts):
    """The real ones over a session that is there, and stays."""

    def __init__(self, order: GroupOrder, spark: SparkSession) -> None:
        super().__init__(order, SystemClock())
        self._spark = spark
        self._listener: ProgressListener | None = None

    def session(self, on_progress: Callable[[BatchProgress], None]) -> Any:
        self._listener = ProgressListener(on_progress)
        self._spark.streams.addListener(self._listener)
        return SimpleNamespace(sparkContext=self._spark.sparkContext, stop=self._end)

    def start_query(self, session: Any, generation: Generation, pause_file: str, on_batch: OnBatch) -> Any:
        return super().start_query(self._spark, generation, pause_file, on_batch)

    def _end(self) -> None:
        if self._listener is not None:
            self._spark.streams.removeListener(self._listener)


class Group:
    """One group on either engine, with one ledger, and one checkpoint."""

    def __init__(self, broker: EmbeddedBroker, spark: SparkSession, folder: Path) -> None:
        self._broker = broker
        self._spark = spark
        self._folder = folder
        self._ledger = folder / "ledger"
        self._sent = 0

    @contextlib.asynccontextmanager
    async def on_local(self) -> AsyncIterator[None]:
        handler = LedgerHandler(LedgerHandler.Options(path=self._ledger, member="local"))
        handler.start()
        async with member(
            self._broker.nameserver,
            handler.handle,
            group=GROUP,
            subscriptions=[TOPIC],
            consume_from_where="first_offset",
        ) as one:
            yield
            await one.stop()
        handler.stop()

    @contextlib.asynccontextmanager
    async def on_spark(self) -> AsyncIterator[None]:
        options = {"path": str(self._ledger), "member": "spark"}
        group = {
            "engine": "spark",
            "subscriptions": {TOPIC: "*"},
            "consume_from_where": "first_offset",
            "handler": {"plugin": "tests.integration.ledger_handler:LedgerHandler", "options": options},
            "spark": {"master": "local[2,4]", "checkpoint": str(self._folder / "checkpoint")},
        }
        config = RootConfig.model_validate({"nameserver": self._broker.nameserver, "groups": {GROUP: group}})
        order = GroupOrder(GROUP, config)
        run = GroupRun(order, Parts(order, self._spark), SystemClock())
        task = asyncio.create_task(run.run())
        try:
            yield
        finally:
            run.stop()
            await asyncio.wait({task}, timeout=SECONDS)
            task.cancel()
        task.result()

    async def send(self, each: int, queues: int = 2) -> None:
        """Put as many messages into each queue."""
        keys = [
            (queue_id, f"q{queue_id}-{self._sent + number}") for number in range(each) for queue_id in range(queues)
        ]
        self._sent += each
        for queue_id, key in keys:
            await asyncio.to_thread(self._broker.send, TOPIC, key, queue_id=queue_id, properties={"KEYS": key})

    async def finished(self, messages: int) -> None:
        """Wait until so many messages were finished, by whoever it was."""
        await eventually(lambda: sum(self.counts().values()) >= messages, f"{messages} are finished", SECONDS)

    def counts(self) -> Counter[str]:
        """How often each key was finished."""
        return Counter(entry.key for entry in ledger.read(self._ledger) if entry.event == FINISH)

    def by(self) -> Counter[str]:
        """How many each engine has finished."""
        return Counter(entry.member for entry in ledger.read(self._ledger) if entry.event == FINISH)

    @property
    def sent(self) -> int:
        """How many messages there are in all."""
        return 2 * self._sent

    @property
    def generations(self) -> list[str]:
        return sorted(path.name[-1] for path in (self._folder / "checkpoint").glob("generation-*"))


@pytest.fixture
def group(broker: EmbeddedBroker, spark: SparkSession, tmp_path: Path) -> Group:
    broker.create_topic(TOPIC, 2)
    return Group(broker, spark, tmp_path)


async def test_a_group_moves_between_the_engines_under_load(group: Group, broker: EmbeddedBroker) -> None:
    """Twice to Spark, twice back: each message is handled once."""
    sending = asyncio.create_task(group.send(10))
    for engine in ("local", "spark", "local", "spark"):
        async with group.on_local() if engine == "local" else group.on_spark():
            await sending
            await group.send(10)
            await group.finished(group.sent)
            sending = asyncio.create_task(group.send(10))  # goes on while the group moves
    await sending
    async with group.on_local():
        await group.finished(group.sent)
    counts = group.counts()
    assert len(counts) == group.sent == 180
    assert set(counts.values()) == {1}, [key for key, count in counts.items() if count > 1]
    assert group.by()["spark"] >= 40
    assert broker.offsets(GROUP, TOPIC) == {0: 90, 1: 90}
    assert group.generations == ["1", "2"]


async def test_resets_hold_while_it_runs(group: Group, broker: EmbeddedBroker) -> None:
    """Of a queue where messages come, which an executor meets, and of one where none come any more."""
    await group.send(10)
    async with group.on_spark():
        await group.finished(20)
        await asyncio.to_thread(broker.reset, GROUP, TOPIC, {1: 7})
        await group.finished(23)
        await asyncio.to_thread(broker.reset, GROUP, TOPIC, {0: 4})
        await asyncio.to_thread(broker.send, TOPIC, "q0-10", queue_id=0, properties={"KEYS": "q0-10"})
        await group.finished(23 + 7)
    counts = group.counts()
    assert {key for key, count in counts.items() if count > 1} == {
        *(f"q1-{number}" for number in (7, 8, 9)),
        *(f"q0-{number}" for number in range(4, 10)),
    }
    assert len(counts) == 21
    assert broker.offsets(GROUP, TOPIC) == {0: 11, 1: 10}
    assert broker.pending_reset(GROUP, TOPIC, 0) is None


async def test_a_driver_obeys_offsets_reset_and_says_so(group: Group, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Of a queue that is idle, too; the command ends when the query has begun at the new offsets."""
    await group.send(10)
    async with group.on_spark():
        await group.finished(20)
        command = "offsets", "reset", GROUP, TOPIC, "--to", "4", "--yes", "-o", "json", "-n", broker.nameserver
        done = await asyncio.to_thread(rmqd, *command, "--set", f"state_dir={tmp_path}", "--wait", f"{SECONDS}s")
        assert done.code == 0, done.err
        assert [one["state"] for one in done.json()["queues"]] == ["moved", "moved"]
        (driver,) = done.json()["members"]
        assert ("@spark-" in driver["client_id"], driver["answers"]) == (True, True)
        await group.finished(20 + 12)
    assert {key for key, count in group.counts().items() if count > 1} == {
        f"q{queue}-{number}" for queue in range(2) for number in range(4, 10)
    }
