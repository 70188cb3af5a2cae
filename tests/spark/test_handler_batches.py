"""A handler group's batches over an embedded broker, called as Spark calls them: retries, order, deadlines, resets."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pytest

from rmqd import Batch, DeadLetter, Message, Retry
from rmqd.wire.messages.properties import COMPRESSED
from tests.spark.embedded_broker import EmbeddedBroker, queue
from tests.spark.needed import need

need("pyspark", "pyarrow")

from pyspark import cloudpickle  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from rmqd.spark.handlers.group_source import handler_source  # noqa: E402
from tests.spark.handler_batches import Checkpoint, GroupQuery, order_of  # noqa: E402
from tests.waiting import WAIT_SECONDS  # noqa: E402

RETRIES = "%RETRY%shop"
SEEN: list[str] = []
LARGEST: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()
    LARGEST.clear()


async def note(batch: Batch) -> None:
    """Acknowledges everything."""
    for message in batch:
        _note(message)


async def decline(batch: Batch) -> None:
    """Retries or dead-letters a message if its body says so."""
    for message in batch:
        body = _note(message)
        if body == "fails":
            raise Retry(delay_level=1)
        if body == "dies":
            raise DeadLetter("it says so")


async def linger(batch: Batch) -> None:
    """Exceeds every deadline for a message with the body `slow`."""
    for message in batch:
        if _note(message) == "slow":
            await asyncio.sleep(30)


class Unwilling:
    """A handler whose start fails."""

    async def start(self) -> None:
        """Fails."""
        raise OSError("the database is away")

    async def handle(self, batch: Batch) -> None:
        """Is never called."""


def _note(message: Message) -> str:
    body = message.body.decode()
    SEEN.append(body if not message.reconsume_times else f"{body}'{message.reconsume_times}")
    return body


def test_ranges_are_handled_and_counted(broker: EmbeddedBroker) -> None:
    """Each message is handled once. The group's offsets follow the checkpoint, and counters cover only their range."""
    broker.fill("orders", 2, 30)
    query = GroupQuery(order_of(broker.nameserver, note))
    query.run_until(lambda: len(SEEN) == 60)
    assert sorted(SEEN) == sorted(f"{queue_id}:{number}" for queue_id in range(2) for number in range(30))
    assert query.handled() == {"acked": 60}
    assert sum(outcome.end - outcome.start for outcome in query.outcomes) == 60
    assert all(
        outcome.topic_counters[0].handler_duration.count == outcome.end - outcome.start for outcome in query.outcomes
    )
    assert broker.offsets("shop", "orders") == {0: 30, 1: 30}


def test_failed_messages_are_retried_through_the_retry_topic(broker: EmbeddedBroker) -> None:
    """The same query reads it from its first message. At the limit of attempts, messages are dead-lettered."""
    broker.create_topic("orders", 1)
    broker.send("orders", "fails", "fine", "dies")
    query = GroupQuery(order_of(broker.nameserver, decline, max_reconsume_times=1))
    query.run_until(lambda: "fails'1" in SEEN)
    assert SEEN.count("fine") == SEEN.count("dies") == 1
    assert query.handled() == {"acked": 1, "retried": 1, "dead_lettered": 1}
    assert query.handled(is_retry=True) == {"dead_lettered": 1}
    assert broker.offsets("shop", RETRIES) == {0: 1}


def test_a_range_that_is_repeated_is_handled_again(broker: EmbeddedBroker) -> None:
    """The driver died after the handlers had finished, but before the checkpoint was written (at least once)."""
    broker.fill("orders", 1, 5)
    checkpoint = Checkpoint()
    GroupQuery(order_of(broker.nameserver, note), checkpoint).poll()
    checkpoint.commits -= 1
    first = list(SEEN)
    GroupQuery(order_of(broker.nameserver, note), checkpoint).poll()
    assert first * 2 == SEEN


def test_an_orderly_range_is_not_divided_and_retried_in_place(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length does not matter. No message overtakes a failed one until its attempts are used up."""
    broker.create_topic("orders", 1)
    monkeypatch.setattr("rmqd.spark.handlers.group_source.MIN_TASK_MESSAGES", 20)
    broker.send("orders", "a", "fails", *["b"] * 100)
    order = order_of(
        broker.nameserver, decline, consume_mode="orderly", max_reconsume_times=2, suspend_current_queue_time="10ms",
        spark={"max_offsets_per_trigger": 5000},
    )  # fmt: skip
    query = GroupQuery(order)
    query.poll()
    assert ["a", "fails", "fails'1", "fails'2", *["b"] * 100] == SEEN
    assert query.handled() == {"acked": 101, "retried": 2, "dead_lettered": 1}
    assert [(one.start, one.end) for one in query.ranges] == [(0, 102)]


def test_an_expired_handler_call_is_abandoned(broker: EmbeddedBroker) -> None:
    """Its message is sent back, and the other messages of the range are handled."""
    broker.create_topic("orders", 1)
    broker.send("orders", "slow", *["quick"] * 20)
    query = GroupQuery(order_of(broker.nameserver, linger, consume_timeout="50ms"))
    query.run_until(lambda: len(SEEN) == 21)
    assert query.handled() == {"acked": 20, "expired": 1}


def test_each_topic_has_its_own_filter(broker: EmbeddedBroker) -> None:
    """Messages that do not match count as consumed."""
    for topic in ("orders", "bills"):
        broker.create_topic(topic, 1)
        for tag in ("paid", "open"):
            broker.send(topic, f"{topic}-{tag}", tags=tag)
    query = GroupQuery(order_of(broker.nameserver, note, subscriptions={"orders": "paid", "bills": "*"}))
    query.run_until(lambda: len(SEEN) == 3)
    assert sorted(SEEN) == ["bills-open", "bills-paid", "orders-paid"]
    assert broker.offsets("shop", "orders") == {0: 2}
    assert query.handled() == {"acked": 3}


def test_an_operators_reset_ends_the_range(broker: EmbeddedBroker) -> None:
    """It is not a loss, and is reported to the driver. Other queues are handled as planned."""
    broker.fill("orders", 2, 20)
    broker.commit("shop", "orders", {0: 10, 1: 10})
    order = order_of(broker.nameserver, note, on_offset_illegal="stop", spark={"max_offsets_per_trigger": 100})
    query = GroupQuery(order)
    query.poll()
    seen = len(SEEN)
    broker.send("orders", *["0:20"] * 5)
    broker.send("orders", *["1:20"] * 5, queue_id=1)
    broker.reset("shop", "orders", {0: 3})
    while not query.poll():
        pass
    ends = {outcome.queue.queue_id: (outcome.reset_to, outcome.stop_reason) for outcome in query.outcomes[-2:]}
    assert ends == {0: (3, ""), 1: (None, "")}
    assert SEEN[seen:] == ["1:20"] * 5


@pytest.mark.parametrize(
    ("policy", "seen", "handled"),
    [
        ("skip", ["first", "last"], {"acked": 2, "corrupt": 1}),
        ("dead_letter", ["first", "last"], {"acked": 2, "corrupt": 1}),
        ("stop", ["first"], {"acked": 1, "corrupt": 1}),
    ],
)
def test_a_corrupt_message_is_handled_as_configured(
    broker: EmbeddedBroker, policy: str, seen: list[str], handled: dict[str, int]
) -> None:
    """The range ends before it, with the reason, or continues after it, depending on on_corrupt_message."""
    broker.create_topic("orders", 1)
    broker.send("orders", "first")
    broker.send("orders", "not compressed", sys_flag=COMPRESSED)
    broker.send("orders", "last")
    query = GroupQuery(order_of(broker.nameserver, note, on_corrupt_message=policy))
    query.poll()
    (outcome,) = query.outcomes
    assert seen == SEEN
    assert query.handled() == handled
    assert outcome.reset_to == (1 if policy == "stop" else None)
    assert outcome.stop_reason.startswith("the message at offset 1 of orders@broker-a:0 is corrupt") == (
        policy == "stop"
    )
    assert outcome.topic_counters[0].dead_letters["corrupt"] == (1 if policy == "dead_letter" else 0)


def test_the_source_is_pickled_without_options(broker: EmbeddedBroker) -> None:
    """Spark pickles the source's class. Its settings are not passed as options, because Spark would show them."""
    broker.fill("orders", 1, 3)
    bound = handler_source(order_of(broker.nameserver, note), {queue("orders", 0): 2}, "", 2)
    source = pickle.loads(cloudpickle.dumps(bound))({})  # type: ignore[no-untyped-call]
    assert (source.name(), source.schema(), dict(source.options)) == ("rmqd_handler", "outcome binary", {})
    assert source.streamReader(StructType()).initialOffset()["q"]["orders"] == {"broker-a": {"0": 2}}


def test_a_handler_that_does_not_start_is_reported(broker: EmbeddedBroker) -> None:
    """Its own error is raised, and the thread of its event loop ends."""
    before = threading.enumerate()
    with pytest.raises(OSError, match="the database is away"):
        GroupQuery(order_of(broker.nameserver, Unwilling))
    for thread in threading.enumerate():
        if thread.name == "rmqd.handler" and thread not in before:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()
