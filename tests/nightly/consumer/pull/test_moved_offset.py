"""A queue whose offset an operator moves: by a push, or on the broker while the queue is held back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import ResponseCode
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.groups import GROUP
from tests.consumer.members import member
from tests.consumer.pull.test_moved_offset import cached
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
