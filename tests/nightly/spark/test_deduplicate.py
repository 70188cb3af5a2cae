"""`deduplicate` on Spark: skipped messages of a repeated micro-batch or task, and tasks with an unavailable store."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rmqd import Batch
from rmqd.consumer.handling import deduplication, held_claims
from rmqd.handler_api.leases.lease_opening import create_claim_store
from rmqd.handler_api.leases.lease_store import ClaimState, ClaimTerms, Key, claim_key_of
from tests.servers.redis import RedisServer
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.handlers.handler_tasks import TaskHandler  # noqa: E402
from rmqd.spark.session.group_spec import GroupSpec  # noqa: E402
from rmqd.spark.session.queue_range import QueueRange  # noqa: E402
from tests.spark.handler_batches import Checkpoint, GroupQuery, order_of  # noqa: E402

pytestmark = pytest.mark.process

SHORT_LEASE_SECONDS = 1.0
SEEN: list[str] = []
KEYS: list[Key] = []
CALLS: list[Callable[[], object]] = []
"""Called by the handler at its next message."""


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    for noted in (SEEN, KEYS, CALLS):
        noted.clear()


def note(batch: Batch) -> None:
    """Acknowledges everything, in threads, because the calls may block."""
    for message in batch:
        SEEN.append(message.body.decode())
        KEYS.append(claim_key_of(str(message.identity), message.first_copy_id))
        if CALLS:
            CALLS.pop()()


def die_at_the_third(batch: Batch) -> None:
    """Takes effect, and is killed before it returns."""
    note(batch)
    if len(SEEN) == 3:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(params=["redis", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a store that is available."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("database"))
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.url


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_leases(monkeypatch.setattr)


def shorten_leases(set_attribute: Callable[[Any, str, float], None] = setattr) -> None:
    set_attribute(held_claims, "LEASE_SECONDS", SHORT_LEASE_SECONDS)
    set_attribute(deduplication, "LEASE_SECONDS", SHORT_LEASE_SECONDS)
    set_attribute(held_claims, "RENEW_INTERVAL_SECONDS", SHORT_LEASE_SECONDS / 3)


def order_with(broker: EmbeddedBroker, url: str, handler: Callable[[Batch], None] = note) -> GroupSpec:
    """A group that handles messages one after the other, and records them in the store at this URL."""
    store = {"store": url.partition("://")[0], "url": url}
    spark = {"max_offsets_per_trigger": 1000}  # all in one micro-batch
    return order_of(broker.nameserver, handler, concurrency=1, deduplicate=store, spark=spark)


def deduplicated(query: GroupQuery) -> int:
    return sum(topic.deduplicated for outcome in query.outcomes for topic in outcome.topic_counters)


def standing(url: str, key: Key) -> ClaimState:
    """Return the state of the message that another member sees in the store."""

    async def ask() -> ClaimState:
        store = create_claim_store(url.partition("://")[0], url, ClaimTerms("shop", "other", 60.0, 3600.0))  # type: ignore[arg-type]
        [found] = await store.claim([key], "other:1")
        await store.release([(key, "other:1")])
        await store.close()
        return found

    return asyncio.run(ask())


def handle_range(order: GroupSpec, queue_range: QueueRange) -> None:
    """Do the work of a task, in a separate process."""
    shorten_leases()
    process = TaskHandler(order)
    process.start()
    process.handle(queue_range)


def test_a_repeated_micro_batch_skips_handled_messages(broker: EmbeddedBroker, url: str) -> None:
    """The driver died after the handlers were done, and before the checkpoint was written."""
    broker.fill("orders", 1, 5)
    checkpoint = Checkpoint()
    GroupQuery(order_with(broker, url), checkpoint).poll()
    checkpoint.commits -= 1
    repeated = GroupQuery(order_with(broker, url), checkpoint)
    repeated.poll()
    assert [f"0:{number}" for number in range(5)] == SEEN
    assert repeated.handled() == {"acked": 5}
    assert deduplicated(repeated) == 5


@pytest.mark.usefixtures("short_leases")
def test_a_repeated_task_skips_messages_that_the_killed_one_had_handled(broker: EmbeddedBroker, url: str) -> None:
    """The message in flight waits for the end of its lease, because its effect is unknown."""
    broker.fill("orders", 1, 5)
    query = GroupQuery(order_with(broker, url))
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, query.reader.getDefaultReadLimit())
    [part] = query.reader.partitions(start, end)
    spawn = multiprocessing.get_context("spawn")
    task = spawn.Process(target=handle_range, args=(order_with(broker, url, die_at_the_third), part.value))
    task.start()
    task.join()
    assert task.exitcode == -signal.SIGKILL
    query.outcomes.append(query.process.handle(part.value))
    assert sorted(SEEN) == ["0:2", "0:3", "0:4"]
    assert query.handled() == {"acked": 5}
    assert deduplicated(query) == 2


@pytest.mark.usefixtures("short_leases")
def test_leases_are_renewed_while_a_task_runs(broker: EmbeddedBroker, url: str) -> None:
    """The handler outlasts its lease, while Spark's thread waits for it."""
    broker.fill("orders", 1, 1)
    found: list[ClaimState] = []

    def take_long() -> None:
        until = time.monotonic() + 3 * SHORT_LEASE_SECONDS
        while time.monotonic() < until:
            found.append(standing(url, KEYS[0]))

    CALLS.append(take_long)
    GroupQuery(order_with(broker, url)).poll()
    assert set(found) == {ClaimState.HELD}
    assert standing(url, KEYS[0]) is ClaimState.CONFIRMED


def test_an_unavailable_store_delays_the_task(broker: EmbeddedBroker, redis_server: RedisServer) -> None:
    """No attempt is lost, and the driver receives no outcome before it is confirmed."""
    broker.fill("orders", 1, 3)
    query = GroupQuery(order_with(broker, redis_server.url))
    back = threading.Timer(1.0, redis_server.start)

    def kill_it() -> None:
        redis_server.kill()
        back.start()

    CALLS.append(kill_it)
    try:
        query.poll()
    finally:
        back.join()
    assert SEEN == ["0:0", "0:1", "0:2"]
    assert query.handled() == {"acked": 3}
    assert [standing(redis_server.url, one) for one in KEYS] == [ClaimState.CONFIRMED] * 3
