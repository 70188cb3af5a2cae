"""The start offset of a group on a queue."""

from __future__ import annotations

from collections import Counter

import pytest
from structlog.testing import capture_logs

from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.offsets.start_offsets import QueueStart, StartOffsetPolicy, in_storing_order
from rmqd.errors.broker_errors import AccessRefusedError
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

RETRY = f"%RETRY%{GROUP}"


async def ignore(batch: Batch) -> None:
    """Handle nothing."""


@pytest.fixture
def broker(broker: ScriptedBroker) -> ScriptedBroker:
    """A broker that knows no group."""
    broker.knows_groups = False
    return broker


@pytest.mark.parametrize(
    ("where", "expected", "expected_retry"),
    [("last_offset", 13, 4), ("first_offset", 10, 4), ("timestamp", 11, 6)],
)
async def test_a_new_group_starts_where_the_option_says(
    broker: ScriptedBroker, where: str, expected: int, expected_retry: int
) -> None:
    """For each topic and the retry topic, as in Java. Each start is committed at once, and logged."""
    [queue], [retry] = broker.create_topic(TOPIC), broker.create_topic(RETRY)
    broker.first[queue], broker.first[retry] = 10, 4
    for timestamp in (1000, 2000, 3000):
        await broker.store(queue, b"x", store_timestamp=timestamp)
    await broker.store(retry, b"x", b"x", store_timestamp=9000)
    with capture_logs() as logs:
        async with member(broker.peer.address, ignore, consume_from_where=where, consume_timestamp_ms=1500):
            await eventually(lambda: broker.pulled_offsets(queue) and broker.pulled_offsets(retry), "both are pulled")
            assert broker.commits_of(queue)[0] == expected
            assert broker.commits_of(retry)[0] == expected_retry
    assert broker.pulled_offsets(queue)[0] == expected
    assert broker.pulled_offsets(retry)[0] == expected_retry
    starts = {entry["queue"]: (entry["offset"], entry["why"]) for entry in logs if entry["event"] == "queue.started"}
    assert starts == {str(queue): (expected, where), str(retry): (expected_retry, where)}


@pytest.mark.parametrize("where", ["last_offset", "first_offset", "timestamp"])
async def test_a_known_group_continues_at_its_stored_offset(broker: ScriptedBroker, where: str) -> None:
    """Also at 0, which is a valid offset."""
    queues = broker.create_topic(TOPIC, 2)
    for queue in queues:
        await broker.store(queue, *[b"x"] * 9)
        broker.offsets[GROUP, queue] = 0 if queue.queue_id else 7
    async with member(broker.peer.address, ignore, consume_from_where=where, consume_timestamp_ms=0):
        await eventually(lambda: all(map(broker.pulled_offsets, queues)), "both queues are pulled")
    assert [broker.pulled_offsets(queue)[0] for queue in queues] == [7, 0]


async def test_first_offset_starts_at_the_first_existing_message(broker: ScriptedBroker) -> None:
    """A start at 0 would stop the queue under `on_offset_illegal: stop`, although no message was missed."""
    [queue] = broker.create_topic(TOPIC)
    broker.first[queue] = 1000
    await broker.store(queue, b"x")
    async with member(
        broker.peer.address,
        ignore,
        consume_from_where="first_offset",
        on_offset_illegal="stop",
        persist_consumer_offset_interval_seconds=0.05,
    ):
        await broker.committed(GROUP, queue, 1001)


async def test_nothing_is_pulled_before_the_start_is_known(broker: ScriptedBroker, flowing: ManualClock) -> None:
    """A failed offset query is repeated, because a guess would lose messages or repeat them."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, *[b"x"] * 9)
    broker.offsets[GROUP, queue] = 5
    broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, Reply(ResponseCode.SYSTEM_BUSY, "just now"))
    async with member(broker.peer.address, ignore, clock=flowing):
        await broker.peer.received(RequestCode.QUERY_CONSUMER_OFFSET, 6)
        assert not broker.pulls
        assert not broker.commits
        broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, broker.query)
        await eventually(lambda: broker.pulled_offsets(queue), "the queue is pulled")
    assert broker.pulled_offsets(queue)[0] == 5


async def test_a_new_group_needs_few_requests(broker: ScriptedBroker) -> None:
    """Hundreds of groups may start at once. Each queue is read when it is acquired, and before and after its commit."""
    queues = broker.create_topic(TOPIC, 4)
    await broker.store(queues[0], b"old")
    async with member(broker.peer.address, ignore):
        await eventually(lambda: len({pull.topic + str(pull.queue_id) for pull in broker.pulls}) == 5, "all are pulled")
        codes = Counter(request.code for request in broker.peer.requests)
    assert codes[RequestCode.LOCK_BATCH_MQ] == 1, "for all queues"
    assert codes[RequestCode.QUERY_CONSUMER_OFFSET] == 4 * 3 + 4, "the retry queue has 4, as the group's mark"
    assert codes[RequestCode.GET_MAX_OFFSET] == 4
    assert codes[RequestCode.GET_EARLIEST_MSG_STORETIME] == 1, "a queue that was never used has no first message"
    assert [broker.offsets[GROUP, queue] for queue in queues] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("topic", "times", "stored_ms", "expected"),
    [
        (TOPIC, [1000] * 6, 1000, QueueStart(6, "committed")),
        (TOPIC, [1000] * 5 + [1001], 1000, QueueStart(5, "later_queue")),
        (TOPIC, [2000] * 8, 1000, QueueStart(0, "later_queue")),
        (TOPIC, [2000] * 3, 0, QueueStart(0, "later_queue")),
        (TOPIC, [], 1000, QueueStart(0, "later_queue")),
        (RETRY, [2000] * 8, 1000, QueueStart(0, "later_queue")),
        (RETRY, [], 1000, QueueStart(6, "committed")),
    ],
)
async def test_a_queue_whose_commit_was_lost_starts_at_its_first_message_that_was_not_pulled(
    broker: ScriptedBroker, client: ClientInstance, topic: str, times: list[int], stored_ms: int, expected: QueueStart
) -> None:
    """The commit was 6, and the newest pulled message was stored at `stored_ms`; 0 if none was pulled."""
    [queue] = broker.create_topic(topic)
    for timestamp in times:
        await broker.store(queue, b"x", store_timestamp=timestamp)
    await client.routes.lookup(topic)
    policy = StartOffsetPolicy(client, "last_offset", 0, 0)
    assert await policy.lost_queue_start(queue, 6, stored_ms) == expected


def test_start_offsets_are_stored_from_the_highest_queue_to_the_lowest() -> None:
    """A topic's only queue on a broker is stored before the lowest queues of others."""
    of_three, alone = [MessageQueue(TOPIC, "a", number) for number in range(3)], MessageQueue(TOPIC, "b", 0)
    assert in_storing_order([*of_three, alone]) == [[of_three[2]], [of_three[1]], [alone], [of_three[0]]]


async def test_a_retry_topic_starts_at_0_if_its_ends_may_not_be_queried(
    broker: ScriptedBroker, client: ClientInstance
) -> None:
    """RocketMQ 5 requires the action Get on the group for that. For other topics it is an error."""
    [retry], [queue] = broker.create_topic(RETRY), broker.create_topic(TOPIC)
    for topic in (RETRY, TOPIC):
        await client.routes.lookup(topic)
    remark = f"User:u has no permission to access Group:{GROUP} from 10.0.0.9, no matched policies."
    broker.peer.on(RequestCode.GET_MIN_OFFSET, Reply(ResponseCode.NO_PERMISSION, remark))
    policy = StartOffsetPolicy(client, "first_offset", 0, 0)
    assert (await policy.new_group_start(retry)).offset == 0
    with pytest.raises(AccessRefusedError):
        await policy.new_group_start(queue)
