"""MessageStore: what is stored, what a read gives, places in time, and what retention gives up.

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


async def test_a_filtered_read_looks_at_800_messages() -> None:
    """So that a group that wants few does not hold the broker up."""
    store = in_memory()
    for _ in range(900):
        put(store, tag="b")

    assert store.get("T", 0, 0, 32, tagged("a")).next_begin_offset == 800


async def test_a_store_stays_below_its_size() -> None:
    """The oldest go, whatever their queue."""
    store = in_memory(BrokerSettings(maxStoreSize=100_000))
    for number in range(1000):
        put(store, str(number).ljust(1000), queue_id=number % 3)

    kept = sorted(int(body) for queue_id in range(3) for body in bodies(store, queue_id=queue_id))
    assert store.size_bytes <= 100_000
    assert kept == list(range(1000 - len(kept), 1000))
    assert len(kept) > 80


async def test_room_is_made_in_parts_and_all_of_it_in_the_end() -> None:
    """However small the messages are: no put has to give up very many at once."""
    store = in_memory(BrokerSettings(maxStoreSize=4_000_000))
    for _ in range(40_000):
        put(store)
    store.change_settings(BrokerSettings(maxStoreSize=500_000))
    for _ in range(20):
        put(store)

    assert store.size_bytes <= 500_000


async def test_more_than_its_size_is_kept_where_all_is_needed() -> None:
    """A broker full of delayed messages takes more, and gives up nothing."""
    store = in_memory(BrokerSettings(maxStoreSize=10_000))
    store.keep(lambda topic, queue_id: 0)
    for number in range(100):
        put(store, str(number).ljust(1000))

    assert len(bodies(store)) == 100


def test_copies_of_a_message_are_in_no_light_queue() -> None:
    """Those for a retry or for later have its properties; and what is no light queue has no offset."""
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


async def test_light_queues_forget_what_is_deleted(tmp_path: Path) -> None:
    """What lies in front of it, and is needed in its own queue, too; a restart finds the same."""
    settings = BrokerSettings(enableLmq=True, enableMultiDispatch=True, fileReservedTime=1)
    clock = ManualClock()
    store, data_dir = in_folder(tmp_path, settings, clock)
    store.keep(lambda _topic, queue_id: 0 if queue_id == 1 else None)
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
