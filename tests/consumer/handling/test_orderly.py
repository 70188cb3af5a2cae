"""An orderly group from end to end, on a scripted broker: locks, order, and hand-overs."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import Any

import pytest

from rmqd.codes import RequestCode
from rmqd.handler_api.batch import Batch
from rmqd.wire.bodies.group_bodies import LockBatchRequestBody
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import BROKER, ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("unpaced")

ORDERLY: dict[str, Any] = {"consume_mode": "orderly", "persist_consumer_offset_interval_seconds": 0.05}
RETRY_QUEUE = MessageQueue(retry_topic(GROUP), BROKER, 0)


class Course:
    """A handler that takes a while, and remembers the order by queue and whether a queue had two batches at once."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.order: dict[MessageQueue, list[int]] = defaultdict(list)
        self.at_once = Counter[MessageQueue]()
        self.most = 0
        self.most_queues = 0
        self._seconds = seconds

    async def __call__(self, batch: Batch) -> None:
        queue = batch.message_queue
        self.at_once[queue] += 1
        self.most = max(self.most, self.at_once[queue])
        self.most_queues = max(self.most_queues, sum(count > 0 for count in self.at_once.values()))
        await asyncio.sleep(self._seconds)
        self.order[queue] += [message.queue_offset for message in batch]
        self.at_once[queue] -= 1


def owners(*members: Member) -> list[int]:
    return [len(one.owned()) for one in members]


def requests(broker: ScriptedBroker, code: RequestCode) -> list[LockBatchRequestBody]:
    return [LockBatchRequestBody.from_json(request.body) for request in broker.peer.got(code)]


@pytest.mark.parametrize("batch_size", [1, 3])
async def test_each_queue_is_handled_in_order_one_batch_at_a_time(broker: ScriptedBroker, batch_size: int) -> None:
    """Several queues are handled at once."""
    queues, course = broker.create_topic(TOPIC, 4), Course(0.002)
    for queue in queues:
        await broker.store(queue, *[b"x"] * 40)
    async with member(broker.peer.address, course, **ORDERLY, consume_message_batch_max_size=batch_size):
        for queue in queues:
            await broker.committed(GROUP, queue, 40)
    assert course.order == {queue: list(range(40)) for queue in queues}
    assert course.most == 1
    assert course.most_queues == 4


async def test_queues_are_locked_under_the_groups_own_name_before_the_first_pull(broker: ScriptedBroker) -> None:
    """One request locks the queues of the topic. All, with the retry topic's, are unlocked after the commit."""
    queues, seen = broker.create_topic(TOPIC, 3), Seen()
    await broker.store(queues[0], b"x")
    async with member(broker.peer.address, seen, **ORDERLY) as only:
        await seen.has(b"x")
        await eventually(lambda: len(broker.locks) == 4, "all are locked")
        assert set(broker.locks) == {(GROUP, queue) for queue in (*queues, RETRY_QUEUE)}
        await only.stop()
        order = [RequestCode(request.code).name for request in broker.peer.requests]
    assert order.index("LOCK_BATCH_MQ") < order.index("QUERY_CONSUMER_OFFSET") < order.index("PULL_MESSAGE")
    first = requests(broker, RequestCode.LOCK_BATCH_MQ)[0]
    assert (first.consumer_group, first.client_id) == (GROUP, only.client.client_id)
    assert len(first.queues) >= 3
    last = {name: max(i for i, other in enumerate(order) if other == name) for name in set(order)}
    assert last["PULL_MESSAGE"] < last["UPDATE_CONSUMER_OFFSET"] < last["UNLOCK_BATCH_MQ"] < last["UNREGISTER_CLIENT"]
    assert not broker.locks


async def test_a_group_waits_without_limit_for_a_queue_that_another_member_locked(
    broker: ScriptedBroker, flowing: ManualClock
) -> None:
    """The queue is shown as locked out and not pulled. Once free, it is acquired at the stored offset."""
    [queue], seen = broker.create_topic(TOPIC), Seen()
    await broker.store(queue, b"1", b"2", b"3")
    broker.locks[GROUP, queue] = "java"
    async with member(broker.peer.address, seen, clock=flowing, **ORDERLY, queue_handover_timeout_seconds=0.1) as one:
        await eventually(lambda: (shown := one.queue()) and shown.state == "locked_out", "it is locked out")
        await eventually(lambda: len(requests(broker, RequestCode.LOCK_BATCH_MQ)) > 4, "the lock is requested again")
        assert not broker.pulled_offsets(queue)
        assert not broker.commits_of(queue)
        assert one.consumer.snapshot().handover_timeouts == 0
        broker.offsets[GROUP, queue] = 1
        del broker.locks[GROUP, queue]
        await seen.has(b"2", b"3")


async def test_queues_move_between_members_without_duplicates_or_concurrent_batches(
    broker: ScriptedBroker,
) -> None:
    """A member joins and leaves while all work. Running batches are finished and committed before the unlock."""
    queues, course = broker.create_topic(TOPIC, 4), Course(0.004)
    for queue in queues:
        await broker.store(queue, *[b"x"] * 60)
    async with member(broker.peer.address, course, **ORDERLY) as old:
        await eventually(lambda: sum(map(len, course.order.values())) > 20, "it is at work")
        async with member(broker.peer.address, course, **ORDERLY) as new:
            await eventually(lambda: owners(old, new) == [2, 2], "both have their share")
            await eventually(lambda: sum(map(len, course.order.values())) > 100, "both are at work")
            await new.stop()
        for queue in queues:
            await broker.committed(GROUP, queue, 60)
    assert course.order == {queue: list(range(60)) for queue in queues}
    assert course.most == 1
