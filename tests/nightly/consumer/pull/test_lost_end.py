"""Offsets that a broker assigns twice: it lost messages in a restart, or the topic was recreated."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.pull.test_lost_end import OLD, QUICK, lose_end
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("hasty")


async def test_messages_that_arrive_while_the_end_is_suspect_are_handled(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the member has pulled nothing yet, and knows no store time."""
    monkeypatch.setattr("rmqd.consumer.pull.offset_moves.SUSPECT_SECONDS", 0.3)
    await broker.store(queue, *OLD[:3])
    broker.offsets[GROUP, queue] = 6
    async with member(broker.peer.address, seen, **QUICK):
        await eventually(lambda: broker.pulled_offsets(queue)[:2] == [6, 6], "the end is suspect")
        await broker.store(queue, b"new3", b"new4")
        await seen.has(b"new3", b"new4")
        await broker.committed(GROUP, queue, 5)


async def test_unread_messages_are_reported_if_the_group_is_beyond_the_end(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """A member that has just started cannot know whether the topic was recreated, or the broker lost its end."""
    broker.first[queue] = 10
    await broker.store(queue, *OLD, store_timestamp=1000)
    broker.offsets[GROUP, queue] = 100
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, **QUICK) as m:
            await broker.committed(GROUP, queue, 16)
            [problem] = m.consumer.snapshot().problems
            assert "6 messages before 16 are not read" in problem.evidence
            assert f"`rmqd offsets reset {GROUP} {TOPIC} --to first`" in problem.next
            await m.stop()
            assert not m.consumer.snapshot().problems
    assert [entry["unread"] for entry in logs if entry["event"] == "offset.corrected"] == [6]


@pytest.mark.parametrize("new", [3, 5])
async def test_a_suspect_queue_that_reaches_its_old_end_again_is_checked(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, monkeypatch: pytest.MonkeyPatch, new: int
) -> None:
    """Messages that were stored later than the pulled ones are other messages."""
    monkeypatch.setattr("rmqd.consumer.pull.offset_moves.SUSPECT_SECONDS", 60)
    await broker.store(queue, *OLD, store_timestamp=1000)
    async with member(broker.peer.address, seen, **QUICK):
        await broker.committed(GROUP, queue, 6)
        pulls = len(broker.pulls)
        await lose_end(broker, queue)
        await eventually(lambda: len(broker.pulls) > pulls + 1, "the end is suspect")
        others = [b"new%d" % number for number in range(new)]
        await broker.store(queue, *others, store_timestamp=2000)
        if new == 3:
            await broker.store(queue, b"last", store_timestamp=2000)
            others.append(b"last")
        await seen.has(*OLD, *others)
        await broker.committed(GROUP, queue, 3 + len(others))


@pytest.mark.parametrize("keeps_offset", [False, True])
@pytest.mark.parametrize("count", [2, 9])
async def test_a_recreated_queue_starts_at_its_first_message(
    broker: ScriptedBroker, seen: Seen, count: int, keeps_offset: bool, flowing: ManualClock
) -> None:
    """Though this member remembers its offset in the earlier queue, and a 4.9 broker keeps the group's offset."""
    queue = broker.create_topic(TOPIC, 2)[1]
    await broker.store(queue, *OLD, store_timestamp=1000)
    async with member(broker.peer.address, seen, clock=flowing, **QUICK) as one:
        await broker.committed(GROUP, queue, 6)
        broker.create_topic(TOPIC)
        await eventually(lambda: (TOPIC, queue.queue_id) not in one.owned(), "the queue is released")
        if not keeps_offset:
            del broker.offsets[GROUP, queue]
        broker.messages[queue] = []
        new = [b"new%d" % number for number in range(count)]
        await broker.store(queue, *new, store_timestamp=2000)
        broker.create_topic(TOPIC, 2)
        await seen.has(*OLD, *new)
        await broker.committed(GROUP, queue, count)
