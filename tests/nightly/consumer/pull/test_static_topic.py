"""Consuming a static topic: its logical queues are the group's, wherever they are led."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Peer, Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.pull.test_static_topic import LOGICAL, ends, led_by, other
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen

__all__ = ["other"]

pytestmark = pytest.mark.usefixtures("hasty", "unpaced")


async def test_a_new_group_is_marked_at_the_brokers_that_lead(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """The mark is an offset on the retry topic, whose queues are of real brokers."""
    broker.knows_groups = False
    broker.lead(TOPIC, led_by("a", 1, 0))
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, consume_from_where="last_offset"):
            await broker.committed(GROUP, MessageQueue(f"%RETRY%{GROUP}", "a", 0), 0)
            await broker.store(queue, b"0")
            await seen.has(b"0")
    assert [line["brokers"] for line in logs if line["event"] == "group.founded"] == [["a"]]
    assert not [line for line in logs if line["event"] == "group.not_marked"]


async def test_a_new_group_is_founded_without_a_leader_that_is_away(
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


async def test_a_queue_that_ends_below_goes_on_there(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    """The leader of a queue that was never moved says that it found nothing where others refuse the offset."""
    broker.lead(TOPIC, led_by("a", 1, 0))
    await broker.store(queue, b"0", b"1", b"2")
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
        await seen.has(b"0", b"1", b"2")
        await broker.committed(GROUP, queue, 3)
        broker.peer.on(RequestCode.PULL_MESSAGE, Reply(ResponseCode.PULL_NOT_FOUND, ext_fields=ends(1, 1)))
        await broker.store(queue, b"3")
        await broker.committed(GROUP, queue, 1)
        assert m.topic().falls == {"operator": 0, "corrected": 1, "take_over": 0}
