"""MessageStore: stored messages, reads, offsets by time, and retention."""

from __future__ import annotations

import pytest

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.filter.message_filter import MessageFilter
from rmqd.broker.store.message_store import MessageStore
from rmqd.broker.store.queue_store import GetMessageStatus as Status
from rmqd.errors import InvalidMessageError
from rmqd.wire.bodies.heartbeat_data import java_hash
from rmqd.wire.messages.encode import StoredMessage
from tests.broker.stores import ADDRESS, bodies, in_memory, messages, put
from tests.clock import ManualClock

HOURS = 3600.0


def tagged(tag: str) -> MessageFilter:
    """Return the filter of a pull for one tag."""
    return MessageFilter(frozenset({java_hash(tag)}))


async def test_a_message_is_read_as_it_was_sent() -> None:
    """With all fields of the sender, and with the broker's offsets, store time and store host."""
    clock = ManualClock(wall=1_700_000_000.5)
    store = in_memory(clock=clock)
    put(store, b"first")
    sent = StoredMessage(
        topic="T",
        body=b"second",
        flag=7,
        born_timestamp=123,
        born_host="10.1.2.3:4567",
        reconsume_times=2,
        properties={"KEYS": "a b", "TAGS": "paid", "own": "ü"},
    )

    stored = store.put(sent)

    [message] = messages(*store.get("T", 0, 1, 32).records)
    assert (stored.queue_offset, message.queue_offset) == (1, 1)
    assert message.commit_log_offset == stored.commit_log_offset > 0
    assert message.store_timestamp == stored.store_timestamp == 1_700_000_000_500
    assert (message.store_host, message.born_host, message.born_timestamp) == (ADDRESS, "10.1.2.3:4567", 123)
    assert (message.body, message.flag, message.reconsume_times) == (b"second", 7, 2)
    assert message.properties == {"KEYS": "a b", "TAGS": "paid", "own": "ü"}
    assert store.record(stored.commit_log_offset) == store.get("T", 0, 1, 32).records[0]
    assert store.record(stored.commit_log_offset + 1) is None


async def test_a_message_that_cannot_be_written_takes_no_offset() -> None:
    """The next message gets the offset."""
    store = in_memory()

    with pytest.raises(InvalidMessageError):
        store.put(StoredMessage(topic="T", body=b"x", properties={"a": "\x01"}))

    assert put(store).queue_offset == 0


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (-1, Status.OFFSET_TOO_SMALL, 0),
        (0, Status.FOUND, 3),
        (2, Status.FOUND, 3),
        (3, Status.OFFSET_OVERFLOW_ONE, 3),
        (4, Status.OFFSET_OVERFLOW_BADLY, 3),
    ],
)
async def test_a_read_returns_the_next_offset(offset: int, status: Status, following: int) -> None:
    """The status at the end differs from the status behind the end, as in the real broker."""
    store = in_memory()
    for _ in range(3):
        put(store)

    result = store.get("T", 0, offset, 32)

    assert (result.status, result.next_begin_offset) == (status, following)
    assert (result.min_offset, result.max_offset) == (0, 3)


async def test_a_read_of_an_empty_queue_has_its_own_status() -> None:
    """Also if the topic is unknown. The pull processor checks the topic."""
    result = in_memory().get("T", 0, 5, 32)

    assert (result.status, result.next_begin_offset) == (Status.NO_MESSAGE_IN_QUEUE, 0)


async def test_a_read_returns_at_most_the_requested_messages_and_32() -> None:
    """At least one message, whatever the client requests."""
    store = in_memory()
    for _ in range(40):
        put(store)

    assert [len(store.get("T", 0, 0, asked).records) for asked in (0, 1, 5, 32, 100)] == [1, 1, 5, 32, 32]


async def test_a_read_ends_at_256_kib_but_returns_a_first_message_of_any_size() -> None:
    """Four messages of 60,000 bytes fit, as on the real broker."""
    store = in_memory()
    for _ in range(6):
        put(store, b"x" * 60_000)
    put(store, b"x" * 300_000)

    assert len(store.get("T", 0, 0, 32).records) == 4
    assert len(store.get("T", 0, 6, 32).records) == 1


async def test_the_next_offset_of_a_filtered_read_is_after_the_checked_messages() -> None:
    """As in Java, a full response ends the read before the next tag is checked."""
    store = in_memory()
    for number in range(50):
        put(store, str(number), tag="a" if number < 3 else "b")

    full = store.get("T", 0, 0, 3, tagged("a"))
    roomy = store.get("T", 0, 0, 32, tagged("a"))
    nothing = store.get("T", 0, 5, 32, tagged("c"))

    assert (len(full.records), full.next_begin_offset) == (3, 3)
    assert (len(roomy.records), roomy.next_begin_offset) == (3, 50)
    assert (nothing.status, nothing.next_begin_offset) == (Status.NO_MATCHED_MESSAGE, 50)


def _five_in_time() -> tuple[MessageStore, int]:
    clock = ManualClock()
    store, begin = in_memory(clock=clock), int(clock.wall() * 1000)
    for seconds in (1, 0, 0, 2, 0):  # store times: 1, 1, 1, 3 and 3 s
        clock.turn(seconds)
        put(store)
    return store, begin


@pytest.mark.parametrize(
    ("at_ms", "lower", "upper"),
    [(-1, 0, 0), (999, 0, 0), (1000, 0, 2), (1001, 3, 2), (3000, 3, 4), (3001, 5, 4), (10**12, 5, 4)],
)
async def test_an_offset_by_time(at_ms: int, lower: int, upper: int) -> None:
    """The first message at or after the time, or the last one at or before it."""
    store, begin = _five_in_time()

    assert store.offset_by_time("T", 0, begin + at_ms) == lower
    assert store.offset_by_time("T", 0, begin + at_ms, upper=True) == upper


async def test_an_offset_by_time_of_an_empty_queue_is_zero() -> None:
    assert in_memory().offset_by_time("T", 0, 10**12) == 0


async def test_messages_older_than_fileReservedTime_are_deleted() -> None:
    """In all queues. The offsets of other messages and of later messages do not change."""
    clock = ManualClock()
    store = in_memory(BrokerSettings(fileReservedTime=2), clock)
    put(store, "old", queue_id=0)
    put(store, "old", queue_id=1)
    clock.turn(1.5 * HOURS)
    young = put(store, "young", queue_id=0)
    clock.turn(1 * HOURS)

    assert store.expire() == 2

    assert (bodies(store, queue_id=0), bodies(store, queue_id=1)) == (["young"], [])
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (1, 2)
    assert (store.min_offset("T", 1), store.max_offset("T", 1)) == (1, 1)
    assert store.get("T", 0, 0, 32).status is Status.OFFSET_TOO_SMALL
    assert store.get("T", 1, 1, 32).status is Status.OFFSET_OVERFLOW_ONE
    assert put(store, queue_id=1).queue_offset == 1
    assert store.record(young.commit_log_offset)


async def test_a_smaller_size_applies_from_the_next_message() -> None:
    """The setting may change while the broker runs."""
    store = in_memory()
    for _ in range(100):
        put(store, b"x" * 1000)
    store.change_settings(BrokerSettings(maxStoreSize=50_000))

    put(store)

    assert store.size_bytes <= 50_000


async def test_needed_messages_are_not_deleted() -> None:
    """A delayed message is delivered even if it is the oldest. Delivered messages may be deleted."""
    clock = ManualClock()
    store = in_memory(BrokerSettings(fileReservedTime=1, maxStoreSize=10_000), clock)
    store.add_retention_rule(lambda topic, queue_id: 1 if (topic, queue_id) == ("SCHEDULE", 3) else None)
    for body in ("delivered", "waits", "waits too"):
        put(store, body, topic="SCHEDULE", queue_id=3)
    clock.turn(2 * HOURS)
    for _ in range(100):
        put(store, b"x" * 1000)
    store.expire()

    assert bodies(store, "SCHEDULE", 3) == ["waits", "waits too"]
    assert store.size_bytes <= 10_000


async def test_a_deleted_topic_starts_again_at_offset_zero() -> None:
    """Other topics keep their messages."""
    store = in_memory()
    gone, stays = put(store, topic="T"), put(store, topic="U")

    store.delete_topic("T")

    assert store.record(gone.commit_log_offset) is None
    assert store.record(stays.commit_log_offset) is not None
    assert put(store, topic="T").queue_offset == 0
