"""Batches that the embedded broker stores as one record: topics with queue.type=BatchCQ, as in 5.5.0."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.broker.filter.message_filter import MessageFilter
from rmqd.broker.store.journal import JournalKind
from rmqd.broker.store.message_store import MessageStore
from rmqd.wire.bodies.heartbeat_data import java_hash
from rmqd.wire.command import RemotingCommand
from rmqd.wire.messages.encode import BatchMember, StoredMessage, encode_batch
from tests.broker.peer import Peer, connected
from tests.broker.popping import popped
from tests.broker.records import letters, records
from tests.broker.stores import bodies, in_folder, in_memory
from tests.clock import ManualClock
from tests.nightly.broker.asking import Asking

BATCH, MAX_OFFSET, MIN_OFFSET = 320, 30, 31


def of_tag(tag: str) -> MessageFilter:
    """Return the filter of a pull for one tag."""
    return MessageFilter(frozenset({java_hash(tag)}))


def put_batch(store: MessageStore, *members: str, tag: str = "") -> int:
    """Store a batch; return its first offset."""
    body = encode_batch([BatchMember(member.encode()) for member in members])
    properties = {"INNER_NUM": str(len(members))} | ({"TAGS": tag} if tag else {})
    message = StoredMessage(topic="T", body=body, sys_flag=0xC0, properties=properties)
    return store.put(message, members=len(members)).queue_offset


@pytest.fixture
def store() -> MessageStore:
    """Three records, with offsets 0 to 2, 3 to 4, and 5."""
    store = in_memory()
    put_batch(store, "a", "b", "c", tag="x")
    put_batch(store, "d", "e", tag="y")
    put_batch(store, "f", tag="x")
    return store


def test_a_batch_takes_an_offset_for_each_member(store: MessageStore) -> None:
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (0, 6)
    assert [record.properties["INNER_BASE"] for record in records(store, "T")] == ["0", "3", "5"]
    assert bodies(store) == list("abcdef")


@pytest.mark.parametrize(
    ("offset", "most", "following", "count"),
    [
        (0, 32, 6, 3),
        (1, 32, 6, 3),  # an offset inside a batch returns the whole batch
        (2, 32, 6, 3),
        (3, 32, 6, 2),
        (4, 1, 5, 1),
        (0, 1, 3, 1),  # the first batch, even if it has more messages than requested
        (0, 4, 3, 1),
        (0, 5, 5, 2),
    ],
)
def test_reads_return_whole_batches(store: MessageStore, offset: int, most: int, following: int, count: int) -> None:
    got = store.get("T", 0, offset, most)

    assert (got.status, got.next_begin_offset, len(got.records)) == ("FOUND", following, count)
    assert (got.min_offset, got.max_offset) == (0, 6)


def test_reads_of_batches_have_limits() -> None:
    store = in_memory(BrokerSettings(maxTransferCountOnMessageInMemory=4, maxTransferBytesOnMessageInMemory=400))
    for _ in range(3):
        put_batch(store, "a", "b", "c")
    assert store.get("T", 0, 0, 32).next_begin_offset == 6, "the read ends with the batch of the fourth message"

    put_batch(store, "x" * 500, "y")
    assert store.get("T", 0, 6, 32).next_begin_offset == 9
    assert store.get("T", 0, 9, 32).next_begin_offset == 11


def test_a_filter_sees_the_tag_of_the_batch(store: MessageStore) -> None:
    got = store.get("T", 0, 0, 32, of_tag("y"))
    nothing = store.get("T", 0, 5, 32, of_tag("y"))

    assert (got.status, len(got.records), got.next_begin_offset) == ("FOUND", 1, 6)
    assert (nothing.status, nothing.next_begin_offset) == ("NO_MATCHED_MESSAGE", 6)


def test_an_offset_by_time_is_the_start_of_a_batch() -> None:
    clock = ManualClock(1000)
    store = in_memory(clock=clock)
    for members in ("ab", "cde"):
        put_batch(store, *members)
        clock.turn(1)

    assert [store.offset_by_time("T", 0, ms) for ms in (0, 1_000_000, 1_000_001, 1_001_001)] == [0, 0, 2, 5]
    assert [store.offset_by_time("T", 0, ms, upper=True) for ms in (0, 1_000_000, 1_001_000)] == [0, 0, 2]


def test_a_batch_is_deleted_when_none_of_its_messages_is_needed() -> None:
    """A batch stays if its last messages are needed."""
    clock = ManualClock(1000)
    store = in_memory(BrokerSettings(fileReservedTime=1), clock)
    needed = 1
    store.add_retention_rule(lambda topic, queue_id: needed)  # reads the current value
    put_batch(store, "a", "b")
    put_batch(store, "c", "d")
    clock.turn(2 * 3600)

    assert store.expire() == 0
    needed = 3
    assert store.expire() == 1
    assert (store.min_offset("T", 0), bodies(store)) == (2, ["c", "d"])
    needed = 4
    assert store.expire() == 1
    assert (store.min_offset("T", 0), store.max_offset("T", 0), store.size_bytes) == (4, 4, 0)


async def test_batches_survive_a_restart(tmp_path: Path) -> None:
    """Offsets stay the same, also after single messages in the same queue and after a deletion."""
    clock = ManualClock(1000)
    store, data_dir = in_folder(tmp_path / "data", BrokerSettings(fileReservedTime=1), clock)
    with closing(data_dir):
        store.put(StoredMessage(topic="T", body=b"alone"))
        put_batch(store, "a", "b", "c")
        clock.turn(2 * 3600)
        put_batch(store, "d", "e")
        assert store.expire() == 2

    for _ in range(2):
        store, data_dir = in_folder(tmp_path / "data", clock=clock)
        with closing(data_dir):
            assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (4, 6)
            assert bodies(store) == ["d", "e"]
            assert len(list(data_dir.items(JournalKind.BATCH))) == 1


# --- over the wire


@pytest.fixture
async def peer(embedded: EmbeddedRocketMQ) -> AsyncIterator[Peer]:
    """A connection to the broker, which has a topic B for batches."""
    async with connected(embedded.broker.address) as broker, connected(embedded.nameserver) as name_server:
        await Asking(embedded, broker, name_server).create("B", 1, attributes="+queue.type=BatchCQ")
        yield broker


async def send(peer: Peer, *members: str, unique_key: str = "u", topic: str = "B") -> RemotingCommand:
    body = encode_batch([BatchMember(member.encode(), {"KEYS": member}) for member in members])
    properties = {"UNIQ_KEY": unique_key} if unique_key else {}
    return await peer.call(BATCH, letters(topic, properties, m="true"), body)


async def ends(peer: Peer, topic: str) -> list[str]:
    """Return the min offset and the max offset of queue 0."""
    replies = [await peer.call(code, {"topic": topic, "queueId": "0"}) for code in (MIN_OFFSET, MAX_OFFSET)]
    return [reply.ext_fields["offset"] for reply in replies]


async def test_a_batch_is_stored_as_one_record(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    assert await ends(peer, "B") == ["-1", "0"]
    assert await ends(peer, "T") == ["0", "0"]

    first, second = await send(peer, "a", "b"), await send(peer, "c", unique_key="v")

    assert (first.ext_fields["batchUniqId"], first.ext_fields["transactionId"]) == ("u", "u")
    assert "," not in first.ext_fields["msgId"]
    assert [reply.ext_fields["queueOffset"] for reply in (first, second)] == ["0", "2"]
    assert await ends(peer, "B") == ["0", "3"]
    stored, _ = records(embedded.broker.store, "B")
    assert stored.sys_flag == 0xC0
    assert stored.properties == {
        "UNIQ_KEY": "u", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster",
        "INNER_NUM": "2", "INNER_BASE": "0",
    }  # fmt: skip


async def test_a_batch_without_a_unique_key_is_stored_as_single_messages(
    embedded: EmbeddedRocketMQ, peer: Peer
) -> None:
    reply = await send(peer, "a", "b", unique_key="")

    assert len(reply.ext_fields["msgId"].split(",")) == len(records(embedded.broker.store, "B")) == 2
    assert "batchUniqId" not in reply.ext_fields


async def test_a_send_back_by_the_offset_of_a_batch_is_rejected(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """A member has the offset of its batch. Clients then send the message to the retry topic themselves."""
    await send(peer, "a", "b")

    reply = await peer.call(36, {"group": "g", "offset": "0", "delayLevel": "0"})

    assert (reply.code, reply.remark) == (1, "MESSAGE_ILLEGAL")
    assert embedded.broker.schedule.next_due() is None


async def test_a_pop_returns_the_whole_batch(peer: Peer) -> None:
    await send(peer, "a", "b")
    await peer.send("B", b"alone")

    assert [got.message.queue_offset for got in await popped(peer, "B")] == [0, 2]
    assert await popped(peer, "B") == []


async def test_the_maximum_number_of_messages_in_a_pull_is_a_setting(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    for number in range(40):
        await peer.send("T", b"%d" % number)
    store = embedded.broker.store
    assert len(store.get("T", 0, 0, 100).records) == 32

    embedded.broker.change_settings(embedded.broker.settings.changed({"maxTransferCountOnMessageInMemory": "1024"}))

    assert len(store.get("T", 0, 0, 100).records) == 40
