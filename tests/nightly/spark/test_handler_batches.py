"""A handler group's batches over an embedded broker, called as Spark calls them: retries, order, deadlines, resets."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import time
from dataclasses import replace
from typing import Annotated

import pytest

import rmqd
from rmqd import Batch, Message
from rmqd.consumer.handling.handler_failures import HandlerHungError
from rmqd.consumer.hooks import Hook, HookContext
from rmqd.errors import DataLossError, RemotingError, RouteNotFoundError
from tests.spark.embedded_broker import EmbeddedBroker, queue
from tests.spark.needed import need

need("pyspark", "pyarrow")


from rmqd.spark.handlers.handler_tasks import started_task_handler  # noqa: E402
from tests.spark.handler_batches import Checkpoint, GroupQuery, order_of  # noqa: E402
from tests.spark.test_handler_batches import (  # noqa: E402
    LARGEST,
    RETRIES,
    SEEN,
    _note,
    note,
)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()
    LARGEST.clear()


@rmqd.handler(json=int)
async def typed(number: int, message: Message, names: Annotated[list[str], rmqd.Depends(lambda: SEEN)]) -> None:
    """Takes numbers, and fails at the first attempt."""
    names.append(f"{number}'{message.reconsume_times}")
    if number == 2 and not message.reconsume_times:
        raise ValueError(number)


def hang(batch: Batch) -> None:
    """Hangs in a thread."""
    for message in batch:
        if _note(message) == "slow":
            time.sleep(2)


class Slow:
    """Counts its concurrent calls."""

    def __init__(self) -> None:
        self._now = 0

    async def handle(self, batch: Batch) -> None:
        """Takes a moment."""
        self._now += 1
        LARGEST.append(self._now)
        await asyncio.sleep(0.002)
        self._now -= 1


def test_typed_handlers(broker: EmbeddedBroker) -> None:
    """Decoded bodies, dependencies, and a decision for each message of a batch, as on the local engine."""
    broker.create_topic("orders", 1)
    broker.send("orders", "1", "2", "oops", "3")
    order = order_of(broker.nameserver, typed, delay_level_when_next_consume=1, consume_message_batch_max_size=8)
    query = GroupQuery(order)
    query.run_until(lambda: "2'1" in SEEN)
    assert sorted(SEEN) == ["1'0", "2'0", "2'1", "3'0"]
    assert query.handled() == {"acked": 2, "retried": 1, "dead_lettered": 1}
    assert query.handled(is_retry=True) == {"acked": 1}


def test_a_long_range_is_split_for_idle_tasks(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is concurrent, so its messages have no order."""
    monkeypatch.setattr("rmqd.spark.handlers.group_source.MIN_TASK_MESSAGES", 20)
    broker.fill("orders", 1, 100)
    query = GroupQuery(order_of(broker.nameserver, note, spark={"max_offsets_per_trigger": 5000}))
    query.poll()
    assert [(one.start, one.end) for one in query.ranges] == [(0, 50), (50, 100)]
    assert query.handled() == {"acked": 100}


def test_if_all_slots_hang_the_group_fails(broker: EmbeddedBroker) -> None:
    """The hanging messages are sent back first."""
    broker.create_topic("orders", 1)
    broker.send("orders", *["slow"] * 4)
    query = GroupQuery(order_of(broker.nameserver, hang, consume_timeout="50ms"))
    query.poll()
    assert query.handled() == {"expired": 4}
    broker.send("orders", *["quick"] * 1000)
    with pytest.raises(HandlerHungError, match="all 4 calls of handler"):
        query.run_until(lambda: "quick" in SEEN)
    assert query.process.has_ended


def test_cached_messages_are_limited_by_the_threshold(broker: EmbeddedBroker) -> None:
    """One more pull is allowed, as on the local engine. Each hold of a queue is counted."""
    broker.fill("orders", 1, 400)
    order = order_of(
        broker.nameserver, Slow, pull_threshold_for_queue=8, pull_batch_size=4, spark={"max_offsets_per_trigger": 400}
    )
    query = GroupQuery(order)
    query.poll()
    assert query.handled() == {"acked": 400}
    assert max(LARGEST) == 4
    assert query.outcomes[0].topic_counters[0].flow_control["count"] > 10
    assert query.outcomes[0].topic_counters[0].held_seconds["count"] > 0


def test_missing_messages_are_skipped_or_fail_the_range(broker: EmbeddedBroker) -> None:
    """`on_offset_illegal: correct` continues and reports how many messages are lost; `stop` fails with the range."""
    broker.fill("orders", 1, 5)
    broker.commit("shop", "orders", {0: 1})
    checkpoint = Checkpoint()
    started = GroupQuery(order_of(broker.nameserver, note), checkpoint)
    start = started.reader.initialOffset()
    broker.pass_hours(73)
    broker.send("orders", "0:5")
    checkpoint.offsets += [json.dumps(start), json.dumps({**start, "q": {"orders": {"broker-a": {"0": 6}}}})]
    checkpoint.commits = 1
    with pytest.raises(DataLossError, match="offsets 1 to 4 are missing: the broker has 5 to 5"):
        GroupQuery(order_of(broker.nameserver, note, on_offset_illegal="stop"), replace(checkpoint)).poll()
    query = GroupQuery(order_of(broker.nameserver, note), checkpoint)
    query.poll()
    assert [(outcome.lost_messages, outcome.start, outcome.end) for outcome in query.outcomes] == [(4, 1, 6)]
    assert SEEN == ["0:5"]


def test_a_deleted_queue_is_a_data_loss(broker: EmbeddedBroker) -> None:
    """All unread messages are lost, once a name server confirms that no broker has the queue."""
    broker.fill("orders", 1, 5)
    query = GroupQuery(order_of(broker.nameserver, note))
    query.poll()
    hasty = replace(query.ranges[0], pull=replace(query.ranges[0].pull, patience_seconds=0.0))
    broker.delete_topic("orders")
    with pytest.raises(DataLossError, match="offsets 0 to 4 are missing: no name server knows"):
        query.process.handle(replace(hasty, fail_on_data_loss=True))
    query = GroupQuery(order_of(broker.nameserver, note))
    assert query.process.handle(hasty).lost_messages == 5


def test_an_unreachable_broker_is_waited_for(broker: EmbeddedBroker) -> None:
    """The source's tolerance limits the wait."""
    broker.fill("orders", 1, 5)
    query = GroupQuery(order_of(broker.nameserver, note))
    query.poll()
    (done,) = query.ranges
    broker.stop()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        again = pool.submit(query.process.handle, done)
        broker.start()
        assert again.result(30).topic_counters[0].handled["acked"] == 5
    broker.stop()
    with pytest.raises(RemotingError):
        query.process.handle(replace(done, pull=replace(done.pull, patience_seconds=0.0)))


@pytest.mark.parametrize("where", ["first_offset", "last_offset", "timestamp"])
def test_a_queue_added_while_the_group_was_down_starts_at_its_first_message(broker: EmbeddedBroker, where: str) -> None:
    """The group is not new, because it has offsets. Offsets of the broker or of the specification take precedence."""
    broker.fill("orders", 3, 3)
    broker.fill(RETRIES, 1, 2)
    broker.commit("shop", "orders", {1: 1})
    query = GroupQuery(order_of(broker.nameserver, note, consume_from_where=where), starting={queue("orders", 2): 2})
    found = query.reader.initialOffset()["q"]
    assert found["orders"]["broker-a"] == {"0": 0, "1": 1, "2": 2}
    assert found[RETRIES]["broker-a"] == {"0": 0}


def test_a_group_with_start_offsets_continues_without_a_missing_topic(broker: EmbeddedBroker) -> None:
    """A missing topic is an error for a group without start offsets, because it may be misspelt."""
    broker.fill("orders", 1, 3)
    order = order_of(broker.nameserver, note, subscriptions={"orders": "*", "bills": "*"})
    GroupQuery(order, starting={queue("orders", 0): 1}).run_until(lambda: len(SEEN) == 2)
    assert SEEN == ["0:1", "0:2"]
    with pytest.raises(RouteNotFoundError, match="no route for topic bills"):
        GroupQuery(order).poll()


def test_hooks_are_called_in_the_process_of_the_handler(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their skipped messages and failures are counted for each range. They see the ends of the queue."""
    ends = set()

    def wants(message: Message, context: HookContext) -> bool:
        ends.add((message.min_offset, message.max_offset))
        return message.body != b"0:3"

    def before(batch: Batch, context: HookContext) -> None:
        if context.group == "shop" and batch[0].body == b"0:1":
            raise ValueError("a hook's own failure")

    hooks = (Hook("choosy", wants=wants), Hook("clumsy", before_batch=before))
    monkeypatch.setattr("rmqd.spark.handlers.handler_tasks.hooks_of", lambda _: hooks)
    broker.fill("orders", 1, 16)
    query = GroupQuery(order_of(broker.nameserver, note))
    query.run_until(lambda: len(SEEN) == 15)
    assert "0:3" not in SEEN
    assert [outcome.skipped_by_hooks for outcome in query.outcomes] == [{"choosy": 1}, {"choosy": 0}]
    assert ends == {(0, 16)}
    assert query.outcomes[0].hook_failures == {"choosy": 0, "clumsy": 1}


def test_a_worker_process_starts_the_handler_once(broker: EmbeddedBroker) -> None:
    """It starts another one for each configuration, and after a failure."""
    broker.fill("orders", 1, 1)
    order = order_of(broker.nameserver, note)
    first = started_task_handler(order, "as it was")
    assert started_task_handler(order, "as it was") is first
    assert started_task_handler(order, "as it is now") is not first
    first.stop()
    assert not started_task_handler(order, "as it was").has_ended
