"""`deduplicate` in a Spark session, if one of its Python processes is killed with SIGKILL in the middle of a batch."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

from rmqd import Batch
from rmqd.consumer.handling import deduplication, held_claims
from tests.servers.redis import RedisServer
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need
from tests.waiting import wait_until

need("pyspark", "pyarrow")

from rmqd.spark.handlers.group_source import handler_query  # noqa: E402
from rmqd.spark.handlers.range_outcome import RangeOutcome  # noqa: E402
from tests.spark.handler_batches import order_of  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 150  # for conditions that wait for Python processes, on a busy machine
LEASE_SECONDS = 3600.0  # the test ends it
EACH = 24  # messages in each of two queues
BATCH = 4
CONFIRMED = b"confirmed "  # the prefix of a handled message's value in Redis


def bodies(start: int, end: int, queue_id: int = 0) -> list[str]:
    return [f"{queue_id}:{number}" for number in range(start, end)]


DONE = bodies(0, 8)  # before the kill
KILLING, HALF_DONE, BESIDE = bodies(8, 12), bodies(8, 10), bodies(12, 16)  # one batch, and the batch of the other slot
REST = bodies(16, EACH) + bodies(0, EACH, queue_id=1)


class KilledOnce:
    """Records its messages, and kills its process when both slots are busy."""

    class Options(BaseModel):
        folder: Path

    def __init__(self, options: Options) -> None:
        self._seen = options.folder / "seen"
        self._killed = options.folder / "killed"
        self._is_beside = asyncio.Event()

    def start(self) -> None:
        """Called in the worker process, before the group takes leases."""
        for module in (deduplication, held_claims):
            setattr(module, "LEASE_SECONDS", LEASE_SECONDS)  # noqa: B010 to mypy it is a constant

    async def handle(self, batch: Batch) -> None:
        found = [message.body.decode() for message in batch]
        if self._killed.exists() or found not in (KILLING, BESIDE):
            self._note(found)
        elif found == BESIDE:
            self._note(found)
            self._is_beside.set()
            await asyncio.Event().wait()
        else:
            await self._is_beside.wait()
            self._note(HALF_DONE)
            self._killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, found: Iterable[str]) -> None:
        with self._seen.open("a") as file:
            file.write("".join(f"{body}\n" for body in found))


def seen(folder: Path) -> Counter[str]:
    """How often the handler received each body."""
    file = folder / "seen"
    return Counter(file.read_text().split()) if file.exists() else Counter()


def claims(server: RedisServer) -> dict[bytes, bytes]:
    with server.client() as client:
        keys = list(client.scan_iter("rmqd:*"))
        return dict(zip(keys, client.mget(keys), strict=True)) if keys else {}


def end_leases(server: RedisServer, keys: Iterable[bytes]) -> None:
    with server.client() as client:
        for key in keys:
            client.pexpire(key, 1)


@pytest.mark.timeout(600)
def test_a_killed_python_process_repeats_only_its_messages_in_flight(
    spark: SparkSession, broker: EmbeddedBroker, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Confirmed messages are skipped. Only the messages in flight wait for the end of their leases."""
    broker.fill("orders", 2, EACH)
    order = order_of(
        broker.nameserver,
        KilledOnce,
        concurrency=2,
        options={"folder": str(tmp_path)},
        consume_message_batch_max_size=BATCH,
        deduplicate={"store": "redis", "url": redis_server.url},
        spark={"trigger": "available_now", "max_offsets_per_trigger": 1000},  # all in one micro-batch
    )
    outcomes: list[RangeOutcome] = []
    query = handler_query(
        spark,
        order,
        checkpoint=str(tmp_path / "checkpoint"),
        starting=None,
        pause_file=str(tmp_path / "pause"),
        on_batch=outcomes.extend,
    )
    try:

        def unconfirmed() -> list[bytes]:
            """The leases of the killed process, once all other messages are confirmed."""
            assert query.isActive, query.exception()
            found = claims(redis_server)
            held = [key for key, value in found.items() if not value.startswith(CONFIRMED)]
            return held if len(found) - len(held) == len(DONE) + len(REST) else []

        left = wait_until(unconfirmed, "all but what the killed process had is handled", SECONDS)
        assert len(left) == len(KILLING) + len(BESIDE)
        assert seen(tmp_path) == Counter(DONE + HALF_DONE + BESIDE + REST)
        assert not outcomes, "the driver receives the outcome of a range only when all of it is settled"

        end_leases(redis_server, left)
        assert query.awaitTermination(SECONDS), seen(tmp_path)
    finally:
        query.stop()
    assert seen(tmp_path) == Counter(DONE + HALF_DONE + BESIDE + REST + KILLING + BESIDE)
    assert all(value.startswith(CONFIRMED) for value in claims(redis_server).values())
    topics = [topic for outcome in outcomes for topic in outcome.topic_counters]
    assert sum(topic.deduplicated for topic in topics) == len(DONE)
    assert sum(topic.handled["acked"] for topic in topics) == 2 * EACH
    assert broker.offsets("shop", "orders") == {0: EACH, 1: EACH}
