"""Broadcasting groups at a scripted broker: all messages for each member, offset files, dropped failures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode
from rmqd.consumer.offsets.local_file_store import OffsetsFile
from rmqd.handler_api.batch import Batch, DeadLetter, Retry
from rmqd.wire.bodies.heartbeat_data import HeartbeatData
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("unpaced")

CLUSTERING_ONLY = (
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.SEND_MESSAGE_V2,
)


class Place:
    """The state_dir of one member."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, **options: Any) -> dict[str, Any]:
        """The options of a broadcasting group that stores its offsets here, and starts at the first offset."""
        quick = {"persist_consumer_offset_interval_seconds": 0.02, "consume_from_where": "first_offset"}
        return {"message_model": "broadcasting", "local_offsets_directory": str(self.path)} | quick | options

    def stored(self) -> dict[MessageQueue, int]:
        return OffsetsFile(self.path / GROUP).load()

    async def has(self, queue: MessageQueue, offset: int) -> None:
        await eventually(lambda: self.stored().get(queue) == offset, f"{offset} is stored; it is {self.stored()}")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "offsets")


def heartbeat(broker: ScriptedBroker) -> HeartbeatData:
    return HeartbeatData.from_json(broker.peer.got(RequestCode.HEART_BEAT)[-1].body)


async def test_each_member_gets_all_messages_of_all_queues(broker: ScriptedBroker, tmp_path: Path) -> None:
    queues = broker.create_topic(TOPIC, queues=4)
    members = [Seen() for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:

        async def consume(number: int) -> None:
            place = Place(tmp_path / str(number))
            async with member(broker.peer.address, members[number], **place()) as running:
                await eventually(lambda: len(members[number].bodies) == 40, "all is handled")
                assert len(running.owned()) == 4
                await running.stop()
            assert place.stored() == dict.fromkeys(queues, 10)

        for number in range(3):
            tasks.create_task(consume(number))
        for count in range(10):
            for queue in queues:
                await broker.store(queue, b"%d-%d" % (queue.queue_id, count))
    for seen in members:
        assert len(set(seen.bodies)) == 40


async def test_a_broadcasting_member_sends_no_clustering_requests(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, place: Place
) -> None:
    """It needs no member list, no offsets at brokers, no locks and no retry topic."""
    await broker.store(queue, b"x")
    async with member(broker.peer.address, seen, **place()) as running:
        await seen.has(b"x")
        await place.has(queue, 1)
        (data,) = heartbeat(broker).consumer_data_set
        assert (data.message_model, [entry.topic for entry in data.subscription_data_set]) == ("BROADCASTING", [TOPIC])
        await running.stop()

    assert [code.name for code in CLUSTERING_ONLY if broker.peer.got(code)] == []
    assert broker.peer.got(RequestCode.UNREGISTER_CLIENT)


async def test_an_added_queue_is_acquired_without_a_member_list(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, place: Place
) -> None:
    async with member(broker.peer.address, seen, **place()) as running:
        await eventually(lambda: running.queue(0) is not None, "it has the queue")
        second = broker.create_topic(TOPIC, queues=2)[1]
        await broker.store(second, b"y")
        running.client.routes.refresh_soon([TOPIC])
        await seen.has(b"y")


# --- failures


@pytest.mark.parametrize("delay_level", [0, -1])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no"), "broadcasting groups have no retries"),
        (Retry(delay_level=3), "broadcasting groups have no retries"),
        (DeadLetter("bad order"), "bad order"),
    ],
    ids=["raises", "Retry", "DeadLetter"],
)
async def test_a_failed_message_is_logged_counted_and_dropped(
    broker: ScriptedBroker, queue: MessageQueue, place: Place, error: Exception, reason: str, delay_level: int
) -> None:
    await broker.store(queue, b"bad", b"good")

    async def handle(batch: Batch) -> None:
        if batch[0].body == b"bad":
            raise error

    with capture_logs() as logs:
        options = place(delay_level_when_next_consume=delay_level)
        async with member(broker.peer.address, handle, **options) as running:
            await place.has(queue, 2)
            counted = running.topic()

    dropped = [line for line in logs if line["event"] == "message.dropped"]
    assert [(line["offset"], line["log_level"]) for line in dropped] == [(0, "warning")]
    assert dropped[0]["reason"] == ("delay level -1" if delay_level and isinstance(error, ValueError) else reason)
    assert counted.handled["dead_lettered"] == counted.handled["acked"] == 1
    assert sum(counted.handled.values()) == 2
    assert [broker.sent_back, broker.sent] == [[], []]


# --- in order


async def test_an_orderly_broadcasting_group_retries_in_place_without_locks(
    broker: ScriptedBroker, queue: MessageQueue, place: Place
) -> None:
    """Each member consumes all queues. N reconsume times make N + 1 attempts."""
    await broker.store(queue, b"a", b"bad", b"c")
    seen: list[bytes] = []

    async def handle(batch: Batch) -> None:
        seen.append(batch[0].body)
        if batch[0].body == b"bad":
            raise ValueError("no")

    options = place(consume_mode="orderly", max_reconsume_times=2, suspend_current_queue_time_seconds=0.01)
    with capture_logs() as logs:
        async with member(broker.peer.address, handle, **options) as running:
            await place.has(queue, 3)
            counted = running.topic().handled
            await running.stop()

    assert seen == [b"a", b"bad", b"bad", b"bad", b"c"]
    assert (counted["acked"], counted["retried"], counted["dead_lettered"]) == (2, 2, 1)
    (dropped,) = [line for line in logs if line["event"] == "message.dropped"]
    assert (dropped["offset"], dropped["reason"]) == (1, "max_reconsume_times reached")
    assert [code.name for code in CLUSTERING_ONLY if broker.peer.got(code)] == []
