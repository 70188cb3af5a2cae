"""A group with a handler on a real Spark over the embedded broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rmqd.config.model.root_model import RootConfig
from rmqd.runtime.clock import SystemClock
from rmqd.spark.session.group_spec import GroupSpec
from tests.rocketmq import ledger
from tests.rocketmq.ledger import FINISH
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need
from tests.waiting import eventually

need("pyspark", "pyarrow")

from rmqd.spark.engine.group_run import GroupRun  # noqa: E402
from rmqd.spark.engine.spark_figures import BatchProgress, ProgressListener  # noqa: E402
from rmqd.spark.engine.spark_parts import GroupRunParts  # noqa: E402
from rmqd.spark.handlers.range_outcome import OnBatch  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqd.spark.engine.checkpoint_generations import CheckpointGeneration

GROUP, TOPIC = "mover", "orders"
SECONDS = 120

pytestmark = pytest.mark.timeout(400)  # an otherwise idle machine needs much less


class Parts(GroupRunParts):
    """The real SparkParts over an existing session, which stays open."""

    def __init__(self, order: GroupSpec, spark: SparkSession) -> None:
        super().__init__(order, SystemClock())
        self._spark = spark
        self._listener: ProgressListener | None = None

    def start_session(self, on_progress: Callable[[BatchProgress], None]) -> Any:
        self._listener = ProgressListener(on_progress)
        self._spark.streams.addListener(self._listener)
        return SimpleNamespace(sparkContext=self._spark.sparkContext, stop=self._end)

    def start_query(self, session: Any, generation: CheckpointGeneration, pause_file: str, on_batch: OnBatch) -> Any:
        return super().start_query(self._spark, generation, pause_file, on_batch)

    def _end(self) -> None:
        if self._listener is not None:
            self._spark.streams.removeListener(self._listener)


class Group:
    """One group, with one ledger and one checkpoint."""

    def __init__(self, broker: EmbeddedBroker, spark: SparkSession, folder: Path) -> None:
        self._broker = broker
        self._spark = spark
        self._folder = folder
        self._ledger = folder / "ledger"
        self._sent = 0

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
        order = GroupSpec(GROUP, config)
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
        """Store `each` messages in each queue."""
        keys = [
            (queue_id, f"q{queue_id}-{self._sent + number}") for number in range(each) for queue_id in range(queues)
        ]
        self._sent += each
        for queue_id, key in keys:
            await asyncio.to_thread(self._broker.send, TOPIC, key, queue_id=queue_id, properties={"KEYS": key})

    async def finished(self, messages: int) -> None:
        """Wait until so many messages are finished."""
        await eventually(lambda: sum(self.counts().values()) >= messages, f"{messages} are finished", SECONDS)

    def counts(self) -> Counter[str]:
        """How often each key was finished."""
        return Counter(entry.key for entry in ledger.read(self._ledger) if entry.event == FINISH)


@pytest.fixture
def group(broker: EmbeddedBroker, spark: SparkSession, tmp_path: Path) -> Group:
    broker.create_topic(TOPIC, 2)
    return Group(broker, spark, tmp_path)


async def test_a_group_handles_messages_and_applies_a_reset(group: Group, broker: EmbeddedBroker) -> None:
    """An executor finds the reset, and the next generation handles the messages again."""
    await group.send(5)
    async with group.on_spark():
        await group.finished(10)
        await asyncio.to_thread(broker.reset, GROUP, TOPIC, {0: 2})
        await asyncio.to_thread(broker.send, TOPIC, "q0-5", queue_id=0, properties={"KEYS": "q0-5"})
        await group.finished(14)
    counts = group.counts()
    assert {key for key, count in counts.items() if count > 1} == {f"q0-{number}" for number in (2, 3, 4)}
    assert len(counts) == 11
    assert broker.offsets(GROUP, TOPIC) == {0: 6, 1: 5}
    assert broker.pending_reset(GROUP, TOPIC, 0) is None
