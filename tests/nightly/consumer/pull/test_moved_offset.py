"""A queue whose offset the broker corrects: it lost its end, deleted messages, or contradicts itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, Blocked
from tests.consumer.members import member
from tests.consumer.pull.test_moved_offset import MOVED, cached
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("hasty", "unpaced")


@pytest.mark.slow
async def test_a_queue_continues_at_a_lower_end_after_its_cached_messages(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Other messages get the offsets of the lost ones, and no commit may skip them."""
    await broker.store(queue, *[b"%d" % number for number in range(6)])
    release = asyncio.Event()

    async def handle(batch: Batch) -> None:
        await release.wait()
        await seen(batch)

    options: dict[str, Any] = {"pull_threshold_for_queue": 5, "persist_consumer_offset_interval_seconds": 0.05}
    async with member(broker.peer.address, handle, concurrency=1, **options) as m:
        await eventually(lambda: cached(m) == 6, "all are in memory")
        del broker.messages[queue][3:]
        await eventually(lambda: (q := m.queue()) and q.position == 3, "the next pull will start at the end")
        await broker.store(queue, b"new3", b"new4")
        pulled = len(broker.pulled_offsets(queue))
        release.set()
        await seen.has(*[b"%d" % number for number in range(6)], b"new3", b"new4")
        await broker.committed(GROUP, queue, 5)
    assert 3 in broker.pulled_offsets(queue)[pulled:]
    commits = broker.commits_of(queue)
    assert commits == sorted(commits)
    assert not {4, 6} & set(commits)


@pytest.mark.parametrize(("low", "high", "offered"), [(0, 10, 2**63 - 1), (6, 10, 7)])
async def test_a_correction_that_contradicts_the_brokers_ends_is_not_believed(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, low: int, high: int, offered: int
) -> None:
    """It is logged, and the pull is repeated."""
    broker.first[queue] = low
    await broker.store(queue, *[b"%d" % number for number in range(low, high)])
    broker.offsets[GROUP, queue] = 5
    broker.answer_pull(queue, broker.nothing(queue, ResponseCode.PULL_OFFSET_MOVED, offered, "OFFSET_TOO_SMALL"))
    with capture_logs() as logs:
        async with member(broker.peer.address, seen):
            await seen.has(*[b"%d" % number for number in range(max(5, low), high)])
    [entry] = [entry for entry in logs if entry["event"] == "pull.failed"]
    assert f"refuses offset 5 and suggests {offered}" in entry["error"]


@pytest.mark.parametrize("why", ["count", "paused"])
async def test_cached_messages_are_handled_though_the_broker_deleted_them(
    broker: ScriptedBroker, queue: MessageQueue, why: str
) -> None:
    """Retention passes a queue that is held back. Only the next pull starts later; no unfinished message is committed.

    Failed messages are sent to the retry topic, because the broker cannot copy them from its log any more.
    """
    await broker.store(queue, *[b"%d" % number for number in range(10)])
    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, Reply(ResponseCode.SYSTEM_ERROR, "the offset is not there"))
    release = asyncio.Event()

    async def handle(batch: Batch) -> None:
        await release.wait()
        raise ValueError("not now")

    options: dict[str, Any] = {"pull_threshold_for_queue": 9, "persist_consumer_offset_interval_seconds": 0.05}
    with capture_logs() as logs:
        async with member(broker.peer.address, handle, concurrency=2, **options) as m:
            await eventually(lambda: cached(m) == 10, "all are in memory")
            if why == "paused":
                m.consumer.pause()
            broker.messages[queue].clear()
            broker.first[queue] = 20
            await broker.store(queue, b"20")
            await eventually(lambda: (q := m.queue()) and q.position == 20, "the next pull will start there")
            assert (cached(m), broker.offsets.get((GROUP, queue), 0)) == (10, 0)
            m.consumer.resume()
            release.set()
            await broker.committed(GROUP, queue, 21)
            assert m.topic().handled["retried"] == 11
            assert m.topic().lost == 10
    assert {sent.header.topic for sent in broker.sent} == {retry_topic(GROUP)}
    assert sorted(sent.body for sent in broker.sent) == sorted([*[b"%d" % number for number in range(10)], b"20"])
    [entry] = [entry for entry in logs if entry["event"] == "offset.corrected"]
    assert (entry["offset"], entry["corrected"], entry["skipped"], entry["cached"]) == (10, 20, 10, 10)


async def test_a_correction_to_the_same_offset_is_pulled_again_after_a_pause(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """Cached messages stay, and are committed once they are handled."""
    await broker.store(queue, b"0", b"1")
    broker.answer_pull(
        queue, broker.found(queue, broker.records(queue), 2), *[broker.nothing(queue, MOVED, 2, "BADLY")] * 10_000
    )
    handle = Blocked()
    async with member(broker.peer.address, handle, clock=flowing, persist_consumer_offset_interval_seconds=0.05) as m:
        await eventually(lambda: len(broker.pulled_offsets(queue)) >= 3, "it is asked again")
        await flowing.sleep(0.5)
        assert len(broker.pulled_offsets(queue)) <= 20
        assert (cached(m), broker.offsets.get((GROUP, queue), 0)) == (2, 0)
        handle.release.set()
        await broker.committed(GROUP, queue, 2)
        broker.forget_answers(queue)
        await broker.store(queue, b"2")
        await broker.committed(GROUP, queue, 3)
