"""A consumer at a scripted broker: each kind of pull response."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.pull.test_moved_offset import assigned
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

NOT_FOUND = ResponseCode.PULL_NOT_FOUND
RETRY_IMMEDIATELY = ResponseCode.PULL_RETRY_IMMEDIATELY
MOVED = ResponseCode.PULL_OFFSET_MOVED

pytestmark = pytest.mark.usefixtures("hasty")


async def test_found_messages_are_handled_and_pulling_continues(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, flowing: ManualClock
) -> None:
    """The next pull uses the broker's next offset, which is committed."""
    await broker.store(queue, b"0", b"1", b"2")
    async with member(broker.peer.address, seen, clock=flowing, pull_batch_size=2) as m:
        await seen.has(b"0", b"1", b"2")
        await broker.committed(GROUP, queue, 3)
        await flowing.sleep(5)
        await broker.store(queue, b"3")
        await seen.has(b"0", b"1", b"2", b"3")
        await broker.committed(GROUP, queue, 4)
        topic = m.topic()
    assert broker.pulled_offsets(queue) == [0, 2, 3, 4]
    assert (topic.received, topic.handled["acked"]) == (4, 4)
    commits = broker.commits_of(queue)
    assert commits == sorted(set(commits)), "nothing is committed twice, or downward"
    pull = broker.pulls[0]
    assert (pull.consumer_group, pull.max_msg_nums, pull.sys_flag, pull.suspend_timeout_millis) == (GROUP, 2, 2, 15000)


@pytest.mark.parametrize("code", [NOT_FOUND, RETRY_IMMEDIATELY])
async def test_a_response_without_matching_messages_advances_the_offset(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, code: ResponseCode
) -> None:
    """Filtered messages are committed as consumed, because otherwise their lag would remain.

    The pull interval applies only after messages, as in Java: the first message after an idle time must not wait.
    """
    await broker.store(queue, *[b"unwanted"] * 800, b"wanted")
    broker.answer_pull(queue, broker.nothing(queue, code, 700), broker.nothing(queue, code, 800))
    options: dict[str, Any] = {"persist_consumer_offset_interval_seconds": 0.05, "pull_interval_seconds": 60.0}
    async with member(broker.peer.address, seen, **options):
        await seen.has(b"wanted")
        await broker.committed(GROUP, queue, 801)
    assert broker.pulled_offsets(queue) == [0, 700, 800]


async def test_filtered_offsets_wait_for_unfinished_messages(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """Java's correct-tags offset, which applies only if no message is cached."""
    release = asyncio.Event()

    async def handle(batch: Batch) -> None:
        await release.wait()

    await broker.store(queue, b"slow", *[b"unwanted"] * 9)
    broker.answer_pull(
        queue, broker.found(queue, broker.records(queue, 0, 1), 1), broker.nothing(queue, RETRY_IMMEDIATELY, 10)
    )
    async with member(broker.peer.address, handle, clock=flowing):
        await eventually(lambda: 10 in broker.pulled_offsets(queue), "the offset moves on")
        await flowing.sleep(5)
        assert broker.offsets[GROUP, queue] == 0
        release.set()
        await broker.committed(GROUP, queue, 10)


@pytest.mark.parametrize("offset", [2, 9])
async def test_an_illegal_offset_is_corrected_as_the_broker_says(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, offset: int
) -> None:
    """Below the first message, or above the end. The correction is committed at once, also downward, and logged.

    The pull is repeated before a committed offset is corrected.
    """
    broker.first[queue] = 5
    broker.offsets[GROUP, queue] = offset
    await broker.store(queue, b"5", b"6")
    with capture_logs() as logs:
        async with member(broker.peer.address, seen):
            expected = 5 if offset < 5 else 7
            await broker.committed(GROUP, queue, expected)
            await broker.store(queue, b"7")
            await seen.has(*[b"5", b"6", b"7"][expected - 5 :])
    assert list(dict.fromkeys(broker.pulled_offsets(queue)))[:2] == [offset, expected]
    [entry] = [entry for entry in logs if entry["event"] == "offset.corrected"]
    assert (entry["offset"], entry["corrected"]) == (offset, expected)


async def test_an_illegal_offset_stops_the_queue_if_configured(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """With `on_offset_illegal: stop` the queue is reported as stuck until an operator's reset."""
    broker.first[queue] = 5
    broker.offsets[GROUP, queue] = 2
    await broker.store(queue, b"5", b"6")
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, on_offset_illegal="stop") as m:
            await eventually(lambda: (q := m.queue()) and q.state == "stuck", "the queue is shown as stuck")
            await eventually(lambda: len(broker.pulled_offsets(queue)) > 3, "it is pulled repeatedly")
            assert not broker.commits_of(queue)
            assert not seen.bodies
            broker.answer_pull(queue, broker.nothing(queue, MOVED, 6, "OFFSET_RESET"))
            await seen.has(b"6")
            await eventually(lambda: (q := m.queue()) and q.state == "waiting", "the queue is not stuck any more")
    assert len([entry for entry in logs if entry["event"] == "offset.illegal"]) == 1


async def test_a_stuck_queue_stays_stuck_when_it_grows_past_the_illegal_offset(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Otherwise the messages below it would be skipped. A reset to the same offset confirms the skip."""
    options: dict[str, Any] = {"on_offset_illegal": "stop", "persist_consumer_offset_interval_seconds": 0.05}
    broker.offsets[GROUP, queue] = 3
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen, **options) as m:

        def why() -> str:
            loop = assigned(m.consumer, queue).loop
            return "" if loop is None or loop.stuck is None else loop.stuck.evidence

        await eventually(lambda: (q := m.queue()) and q.state == "stuck", "the queue is stuck")
        assert "is above the queue's end, 1" in why()
        await broker.store(queue, b"1", b"2", b"3")
        await eventually(lambda: "from 1 on may not have been handled" in why(), "it is still stuck")
        pulls = len(broker.pulled_offsets(queue))
        await eventually(lambda: len(broker.pulled_offsets(queue)) > pulls + 2, "it is pulled repeatedly")
        assert not seen.bodies
        broker.answer_pull(queue, broker.nothing(queue, MOVED, 3, "OFFSET_RESET"))
        await seen.has(b"3")
        await broker.committed(GROUP, queue, 4)


async def test_an_operators_reset_moves_the_queue_back(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    """Cached messages are discarded, and results of batches in flight are ignored."""
    release, slow = asyncio.Event(), True

    async def handle(batch: Batch) -> None:
        nonlocal slow
        if batch[0].body == b"3" and slow:
            slow = False
            await release.wait()
        await seen(batch)

    await broker.store(queue, b"0", b"1", b"2", b"3")
    broker.offsets[GROUP, queue] = 2
    broker.answer_pull(
        queue, broker.found(queue, broker.records(queue, 2), 4), broker.nothing(queue, MOVED, 1, "OFFSET_RESET")
    )
    async with member(broker.peer.address, handle, persist_consumer_offset_interval_seconds=0.05) as m:
        await seen.has(b"2", b"1", b"2", b"3")
        release.set()
        await seen.has(b"2", b"1", b"2", b"3", b"3")
        await broker.committed(GROUP, queue, 4)
        topic = m.topic()
    assert broker.commits_of(queue) == [1, *sorted(broker.commits_of(queue)[1:])]
    assert topic.duplicates == {"offset_moved": 1}


@pytest.mark.parametrize("code", [ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST])
async def test_a_broker_without_our_subscription_gets_a_heartbeat(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, code: ResponseCode
) -> None:
    """At once, so that the next pull works."""
    async with member(broker.peer.address, seen):
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "the first pull waits")
        beats = len(broker.peer.got(RequestCode.HEART_BEAT))
        broker.answer_pull(queue, Reply(code, "the consumer's subscription not exist"))
        await broker.store(queue, b"0", b"1")
        await broker.peer.received(RequestCode.HEART_BEAT, beats + 1)
        await seen.has(b"0", b"1")


@pytest.mark.parametrize(
    "reply",
    [
        Reply(ResponseCode.SYSTEM_ERROR, "store failed"),
        Reply(ResponseCode.SYSTEM_BUSY, "busy"),
        Reply(ResponseCode.NO_PERMISSION, "the broker's permission forbids it"),
        Reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic"),
        Reply(ResponseCode.FLOW_CONTROL, "slow down"),
        Reply(4711, "of a later version"),
        Reply(ResponseCode.SUCCESS, "", {"nextBeginOffset": "x"}),
        Reply(ResponseCode.SUCCESS, "", {}),
        Reply(NOT_FOUND, "", {"minOffset": "0"}),
    ],
    ids=lambda reply: f"{reply.code}-{len(reply.ext_fields)}",
)
async def test_after_any_error_the_queue_is_pulled_again_from_its_offset(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, reply: Reply
) -> None:
    """Nothing is lost, and no other offset is tried."""
    await broker.store(queue, b"0", b"1")
    broker.answer_pull(queue, broker.found(queue, broker.records(queue, 0, 1), 1), reply, reply)
    async with member(broker.peer.address, seen):
        await seen.has(b"0", b"1")
    assert broker.pulled_offsets(queue)[:4] == [0, 1, 1, 1]


async def test_a_pull_is_repeated_after_its_connection_was_lost(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    async with member(broker.peer.address, seen):
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "the first pull waits")
        broker.peer.cut()
        await broker.store(queue, b"0")
        await seen.has(b"0")


async def test_tags_are_checked_after_the_brokers_hash_check(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """`Aa` and `BB` have the same hash in Java, so the broker delivers both."""
    for body, tag in [(b"0", "Aa"), (b"1", "BB"), (b"2", "Aa"), (b"3", "BB")]:
        await broker.store(queue, body, properties={"TAGS": tag})
    async with member(
        broker.peer.address, seen, subscriptions={TOPIC: "BB || other"}, persist_consumer_offset_interval_seconds=0.05
    ) as m:
        await seen.has(b"1", b"3")
        await broker.committed(GROUP, queue, 4)
        assert m.topic().received == 2
    assert broker.pulls[0].expression_type == "TAG"


async def test_an_idle_queue_reuses_its_snapshot_until_something_changes(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, flowing: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history takes a snapshot of thousands of queues every few seconds."""
    monkeypatch.setattr("rmqd.consumer.offsets.broker_store.OFFSET_WATCH_SECONDS", 1.0)  # no queue is idle before this
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await broker.committed(GROUP, queue, 1)
        await eventually(lambda: m.queue() is not None and m.queue() is m.queue(), "it waits")
        before = m.queue()
        await broker.store(queue, b"1")
        await eventually(lambda: m.queue() is not before, "a message arrived")
        m.consumer.pause()
        await eventually(lambda: (q := m.queue()) is not None and q.state == "paused", "it is paused")
