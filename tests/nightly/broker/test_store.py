"""MessageStore: limits of reads, retention by size, and light queues.

The core of these tests is in test_store_reads.py.
"""

from __future__ import annotations

from pathlib import Path

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.store.message_store import MessageStore
from rmqd.wire.messages.encode import StoredMessage
from tests.broker.stores import bodies, in_folder, in_memory, messages, put
from tests.clock import ManualClock
from tests.nightly.broker.test_store_reads import tagged


async def test_a_filtered_read_checks_at_most_800_messages() -> None:
    """A group that wants few messages must not block the broker."""
    store = in_memory()
    for _ in range(900):
        put(store, tag="b")

    assert store.get("T", 0, 0, 32, tagged("a")).next_begin_offset == 800


async def test_a_store_stays_below_its_maximum_size() -> None:
    """It deletes the oldest messages of all queues."""
    store = in_memory(BrokerSettings(maxStoreSize=100_000))
    for number in range(1000):
        put(store, str(number).ljust(1000), queue_id=number % 3)

    kept = sorted(int(body) for queue_id in range(3) for body in bodies(store, queue_id=queue_id))
    assert store.size_bytes <= 100_000
    assert kept == list(range(1000 - len(kept), 1000))
    assert len(kept) > 80


async def test_a_smaller_size_is_reached_in_several_steps() -> None:
    """Even with small messages, no put deletes very many at once."""
    store = in_memory(BrokerSettings(maxStoreSize=4_000_000))
    for _ in range(40_000):
        put(store)
    store.change_settings(BrokerSettings(maxStoreSize=500_000))
    for _ in range(20):
        put(store)

    assert store.size_bytes <= 500_000


async def test_a_store_exceeds_its_size_if_all_messages_are_needed() -> None:
    """A broker full of delayed messages accepts more, and deletes none."""
    store = in_memory(BrokerSettings(maxStoreSize=10_000))
    store.add_retention_rule(lambda topic, queue_id: 0)
    for number in range(100):
        put(store, str(number).ljust(1000))

    assert len(bodies(store)) == 100


async def test_a_store_full_of_needed_messages_keeps_new_messages_for_a_while() -> None:
    store = in_memory(BrokerSettings(maxStoreSize=10_000))
    store.add_retention_rule(lambda topic, queue_id: 0 if topic == "delayed" else None)
    for _ in range(20):
        put(store, "x" * 1000, topic="delayed")
    for number in range(20):
        put(store, str(number).ljust(500))

    assert len(bodies(store, "delayed")) == 20
    assert [int(body) for body in bodies(store)] == list(range(12, 20))


async def test_a_store_full_of_needed_messages_asks_rarely_which_messages_are_needed() -> None:
    """With many delayed or popped messages the answer takes long."""
    store = in_memory(BrokerSettings(maxStoreSize=1_000_000))
    asked: list[str] = []

    def needed_from(topic: str, queue_id: int) -> int | None:
        asked.append(topic)
        return 0 if topic == "delayed" else None

    store.add_retention_rule(needed_from)
    for _ in range(700):
        put(store, "x" * 1000, topic="delayed")
    for _ in range(5000):
        put(store, "x" * 100)

    assert len(asked) < 1000
    assert store.size_bytes < 1_300_000


def test_retries_and_delayed_copies_are_not_in_light_queues() -> None:
    """They keep the message's properties. A queue that is not a light queue has no offset."""
    store = in_memory(BrokerSettings(enableLmq=True, enableMultiDispatch=True))
    properties = {"INNER_MULTI_DISPATCH": "plain,%LMQ%a"}
    for topic in "T", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "U":
        store.put(StoredMessage(topic=topic, queue_id=0, body=topic.encode(), properties=properties))
    assert bodies(store, "%LMQ%a") == ["T", "U"]
    found = messages(*store.get("%LMQ%a", 0, 0, 32).records)
    assert [message.properties["INNER_MULTI_QUEUE_OFFSET"] for message in found] == ["null,0", "null,1"]


def put_light(store: MessageStore, body: bytes, names: str, queue_id: int = 0) -> None:
    properties = {"INNER_MULTI_DISPATCH": names}
    store.put(StoredMessage(topic="T", queue_id=queue_id, body=body, properties=properties))


async def test_deleted_messages_leave_the_light_queues(tmp_path: Path) -> None:
    """Earlier messages leave too, even if their own queue still needs them. A restart does not change that."""
    settings = BrokerSettings(enableLmq=True, enableMultiDispatch=True, fileReservedTime=1)
    clock = ManualClock()
    store, data_dir = in_folder(tmp_path, settings, clock)
    store.add_retention_rule(lambda _topic, queue_id: 0 if queue_id == 1 else None)
    put_light(store, b"kept", "%LMQ%a", queue_id=1)
    put_light(store, b"old", "%LMQ%a,%LMQ%b")
    clock.turn(3601)
    put_light(store, b"new", "%LMQ%b,%LMQ%a,no-light-queue")
    assert store.expire() == 1
    assert bodies(store, queue_id=1) == ["kept"]
    assert [store.min_offset(f"%LMQ%{name}", 0) for name in "ab"] == [2, 1]
    assert bodies(store, "%LMQ%a") == bodies(store, "%LMQ%b") == ["new"]
    assert store.max_offset("no-light-queue", 0) == 0
    data_dir.commit()
    data_dir.close()
    again, data_dir = in_folder(tmp_path, settings, clock)
    assert bodies(again, "%LMQ%a") == bodies(again, "%LMQ%b") == ["new"]
    assert again.expire() == 1
    assert bodies(again, "%LMQ%a") == ["new"]
    assert [again.max_offset(f"%LMQ%{name}", 0) for name in "ab"] == [3, 2]
    data_dir.close()
