"""A queue whose offset an operator moves: by a push, or on the broker while the queue is held back."""

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
async def test_a_queue_whose_broker_lost_its_end_goes_on_there_after_what_is_in_memory(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Other messages get the offsets of those that were lost: none of them is passed by a commit."""
    await broker.store(queue, *[b"%d" % number for number in range(6)])
    release = asyncio.Event()

    async def handle(batch: Batch) -> None:
        await release.wait()
        await seen(batch)

    options: dict[str, Any] = {"pull_threshold_for_queue": 5, "persist_consumer_offset_interval_seconds": 0.05}
    async with member(broker.peer.address, handle, concurrency=1, **options) as m:
        await eventually(lambda: cached(m) == 6, "all are in memory")
        del broker.messages[queue][3:]
        await eventually(lambda: (q := m.queue()) and q.position == 3, "the next pull is to begin at the end")
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
async def test_an_offer_that_contradicts_the_brokers_own_ends_is_not_believed(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, low: int, high: int, offered: int
) -> None:
    """It is told, and asked again."""
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
async def test_what_was_pulled_is_handled_though_the_broker_let_it_go(
    broker: ScriptedBroker, queue: MessageQueue, why: str
) -> None:
    """Retention passes a queue that is held back: only the next pull begins elsewhere, and nothing unfinished is
    committed. What fails is sent to the retry topic, as the broker cannot copy it out of its log any more."""
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
            await eventually(lambda: (q := m.queue()) and q.position == 20, "the next pull is to begin there")
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


async def test_an_offset_that_is_moved_nowhere_is_asked_for_again_after_a_while(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """What is in memory stays, and is committed once it is handled."""
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
