"""A static topic: the group consumes its logical queues, whichever broker leads them."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Peer, Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import member
from tests.consumer.pull.test_static_topic import LOGICAL, ends, led_by, other
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["other"]

pytestmark = pytest.mark.usefixtures("hasty", "unpaced")


async def test_a_new_group_is_marked_at_the_leading_brokers(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """The mark is an offset on the retry topic, whose queues belong to real brokers."""
    broker.knows_groups = False
    broker.lead(TOPIC, led_by("a", 1, 0))
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, consume_from_where="last_offset"):
            await broker.committed(GROUP, MessageQueue(f"%RETRY%{GROUP}", "a", 0), 0)
            await broker.store(queue, b"0")
            await seen.has(b"0")
    assert [line["brokers"] for line in logs if line["event"] == "group.founded"] == [["a"]]
    assert not [line for line in logs if line["event"] == "group.not_marked"]


async def test_a_new_group_starts_without_an_unavailable_leader(
    broker: ScriptedBroker, other: Peer, seen: Seen, monkeypatch: pytest.MonkeyPatch, flowing: ManualClock
) -> None:
    """Only the logical queues that it leads wait for it."""
    monkeypatch.setattr("rmqd.consumer.offsets.start_offsets.BROKER_GRACE_SECONDS", 3.0)
    broker.knows_groups = False
    [ours] = broker.create_topic(TOPIC)
    ScriptedBroker(other, "b")
    other.on(RequestCode.QUERY_CONSUMER_OFFSET, Reply(ResponseCode.SYSTEM_BUSY, "not now"))
    broker.lead(TOPIC, led_by("a", 1, 0, total=2), led_by("b", 1, 1, total=2), others={"b": other})
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, clock=flowing, consume_from_where="last_offset"):
            await broker.committed(GROUP, ours, 0)
            await broker.store(ours, b"0")
            await seen.has(b"0")
    theirs = str(MessageQueue(TOPIC, LOGICAL, 1))
    assert [line["queue"] for line in logs if line["event"] == "queue.not_founded"] == [theirs]


async def test_a_queue_with_a_lower_end_continues_there(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """The leader of a queue that was never moved returns PULL_NOT_FOUND, while others refuse the offset."""
    broker.lead(TOPIC, led_by("a", 1, 0))
    await broker.store(queue, b"0", b"1", b"2")
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
        await seen.has(b"0", b"1", b"2")
        await broker.committed(GROUP, queue, 3)
        broker.peer.on(RequestCode.PULL_MESSAGE, Reply(ResponseCode.PULL_NOT_FOUND, ext_fields=ends(1, 1)))
        await broker.store(queue, b"3")
        await broker.committed(GROUP, queue, 1)
        assert m.topic().falls == {"operator": 0, "corrected": 1, "take_over": 0}


async def test_a_retry_is_sent_as_a_new_message(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """A send-back would not find the message if the queue's previous leader has it."""
    broker.lead(TOPIC, led_by("a", 1, 0))
    await broker.store(queue, b"0")

    async def fail(batch: Batch) -> None:
        raise RuntimeError("not now")

    async with member(broker.peer.address, fail, persist_consumer_offset_interval_seconds=0.05):
        await broker.peer.received(RequestCode.SEND_MESSAGE_V2, 1)
        await broker.committed(GROUP, queue, 1)
    [sent] = broker.sent
    assert (sent.header.topic, sent.body) == (f"%RETRY%{GROUP}", b"0")
    assert not broker.sent_back


@pytest.mark.parametrize("code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED])
async def test_a_reset_is_detected_although_the_broker_does_not_name_it(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, code: ResponseCode
) -> None:
    """The leader of a logical queue drops the remark, and at the queue's end returns PULL_NOT_FOUND."""
    broker.lead(TOPIC, led_by("a", 1, 0))
    await broker.store(queue, b"0", b"1", b"2")
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
        await seen.has(b"0", b"1", b"2")
        await broker.committed(GROUP, queue, 3)
        broker.answer_pull(queue, Reply(code, ext_fields=ends(1, 4)))
        await broker.store(queue, b"3")  # ends the held pull; the next one gets the reset
        await eventually(lambda: seen.bodies[-3:] == [b"1", b"2", b"3"], "messages are redelivered from the reset on")
        await broker.committed(GROUP, queue, 4)
        assert m.topic().falls["operator"] == 1


async def test_a_commit_at_a_previous_leader_refreshes_the_route(
    broker: ScriptedBroker, queue: MessageQueue, other: Peer, seen: Seen
) -> None:
    """The previous leader may hold a pull for 15 s more, while the queue's messages are stored elsewhere."""
    moved = ScriptedBroker(other, "b")
    moved.create_topic(TOPIC)
    broker.lead(TOPIC, led_by("a", 1, 0), others={"b": other})
    handler = Blocked()

    async def handle(batch: Batch) -> None:
        await handler(batch)
        await seen(batch)

    await broker.store(queue, b"0")
    async with member(broker.peer.address, handle, persist_consumer_offset_interval_seconds=0.05):
        await eventually(lambda: broker.pulled_offsets(queue)[-1:] == [1], "it waits for more")
        broker.lead(TOPIC, led_by("a", 1, 0), led_by("b", 2, 0), others={"b": other})
        broker.peer.on(RequestCode.UPDATE_CONSUMER_OFFSET, Reply(ResponseCode.NOT_LEADER_FOR_QUEUE, "not here"))
        handler.release.set()
        await moved.committed(GROUP, MessageQueue(TOPIC, "b", 0), 1)
