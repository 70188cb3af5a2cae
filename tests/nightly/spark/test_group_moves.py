"""A group on each engine in turn, and an operator's resets, with a real Spark over the embedded broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.command import rmqd
from tests.consumer.members import member
from tests.integration.ledger_handler import LedgerHandler
from tests.rocketmq import ledger
from tests.rocketmq.ledger import FINISH
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")


from tests.spark.test_group_moves import GROUP, SECONDS, TOPIC, Group  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)  # much less on an idle machine


class Mover(Group):
    """A group that can run on either engine."""

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

    @property
    def sent(self) -> int:
        """How many messages there are in all."""
        return 2 * self._sent

    def by(self) -> Counter[str]:
        """How many each engine has finished."""
        return Counter(entry.member for entry in ledger.read(self._ledger) if entry.event == FINISH)

    @property
    def generations(self) -> list[str]:
        return sorted(path.name[-1] for path in (self._folder / "checkpoint").glob("generation-*"))


@pytest.fixture
def mover(broker: EmbeddedBroker, spark: SparkSession, tmp_path: Path) -> Mover:
    broker.create_topic(TOPIC, 2)
    return Mover(broker, spark, tmp_path)


async def test_a_group_moves_between_the_engines_under_load(mover: Mover, broker: EmbeddedBroker) -> None:
    """The group moves twice to Spark and back, and each message is handled once."""
    sending = asyncio.create_task(mover.send(10))
    for engine in ("local", "spark", "local", "spark"):
        async with mover.on_local() if engine == "local" else mover.on_spark():
            await sending
            await mover.send(10)
            await mover.finished(mover.sent)
            sending = asyncio.create_task(mover.send(10))  # continues during the hand-over
    await sending
    async with mover.on_local():
        await mover.finished(mover.sent)
    counts = mover.counts()
    assert len(counts) == mover.sent == 180
    assert set(counts.values()) == {1}, [key for key, count in counts.items() if count > 1]
    assert mover.by()["spark"] >= 40
    assert broker.offsets(GROUP, TOPIC) == {0: 90, 1: 90}
    assert mover.generations == ["1", "2"]


async def test_resets_take_effect_while_the_group_runs(mover: Mover, broker: EmbeddedBroker) -> None:
    """The reset of an idle queue, and of a queue with a new message, where an executor finds it."""
    await mover.send(10)
    async with mover.on_spark():
        await mover.finished(20)
        await asyncio.to_thread(broker.reset, GROUP, TOPIC, {1: 7})
        await mover.finished(23)
        await asyncio.to_thread(broker.reset, GROUP, TOPIC, {0: 4})
        await asyncio.to_thread(broker.send, TOPIC, "q0-10", queue_id=0, properties={"KEYS": "q0-10"})
        await mover.finished(23 + 7)
    counts = mover.counts()
    assert {key for key, count in counts.items() if count > 1} == {
        *(f"q1-{number}" for number in (7, 8, 9)),
        *(f"q0-{number}" for number in range(4, 10)),
    }
    assert len(counts) == 21
    assert broker.offsets(GROUP, TOPIC) == {0: 11, 1: 10}
    assert broker.pending_reset(GROUP, TOPIC, 0) is None


async def test_a_driver_obeys_offsets_reset_and_reports_it(
    mover: Mover, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """The reset works for idle queues, too. The command ends when the query has started at the new offsets."""
    await mover.send(10)
    async with mover.on_spark():
        await mover.finished(20)
        command = "offsets", "reset", GROUP, TOPIC, "--to", "4", "--yes", "-o", "json", "-n", broker.nameserver
        done = await asyncio.to_thread(rmqd, *command, "--set", f"state_dir={tmp_path}", "--wait", f"{SECONDS}s")
        assert done.code == 0, done.err
        assert [one["state"] for one in done.json()["queues"]] == ["moved", "moved"]
        (driver,) = done.json()["members"]
        assert ("@spark-" in driver["client_id"], driver["answers"]) == (True, True)
        await mover.finished(20 + 12)
    assert {key for key, count in mover.counts().items() if count > 1} == {
        f"q{queue}-{number}" for queue in range(2) for number in range(4, 10)
    }
