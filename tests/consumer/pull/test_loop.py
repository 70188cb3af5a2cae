"""A consumer against a scripted broker: every answer to a pull."""

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


async def test_found_messages_are_handled_and_pulling_goes_on(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, flowing: ManualClock
) -> None:
    """From where the broker says; the position is committed."""
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
async def test_nothing_wanted_moves_the_offset_on(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, code: ResponseCode
) -> None:
    """What the broker's filter passed over is committed as consumed, or its lag would stay.

    The pull interval is a pause after messages, as in Java: otherwise the first message behind an idle time would wait.
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
    """Correct-tags offset: only where nothing is cached."""
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
    """Below its first message, or above its end. It is committed at once, downward too, counted and logged.

    What was committed is not given up at the first word: the broker is asked again before.
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


async def test_an_illegal_offset_holds_the_queue_where_that_is_wanted(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """`on_offset_illegal: stop`: nothing is committed, it is shown, and an operator's reset is taken."""
    broker.first[queue] = 5
    broker.offsets[GROUP, queue] = 2
    await broker.store(queue, b"5", b"6")
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, on_offset_illegal="stop") as m:
            await eventually(lambda: (q := m.queue()) and q.state == "stuck", "the queue is shown as stuck")
            await eventually(lambda: len(broker.pulled_offsets(queue)) > 3, "it is asked again and again")
            assert not broker.commits_of(queue)
            assert not seen.bodies
            broker.answer_pull(queue, broker.nothing(queue, MOVED, 6, "OFFSET_RESET"))
            await seen.has(b"6")
            await eventually(lambda: (q := m.queue()) and q.state == "waiting", "the queue is not stuck any more")
    assert len([entry for entry in logs if entry["event"] == "offset.illegal"]) == 1


async def test_a_held_queue_stays_held_when_it_has_grown_past_the_illegal_offset(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Otherwise the messages below it would be skipped. A reset to the same offset says that they are not wanted."""
    options: dict[str, Any] = {"on_offset_illegal": "stop", "persist_consumer_offset_interval_seconds": 0.05}
    broker.offsets[GROUP, queue] = 3
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen, **options) as m:

        def why() -> str:
            loop = assigned(m.consumer, queue).loop
            return "" if loop is None or loop.stuck is None else loop.stuck.evidence

        await eventually(lambda: (q := m.queue()) and q.state == "stuck", "the queue is held")
        assert "is above the queue's end, 1" in why()
        await broker.store(queue, b"1", b"2", b"3")
        await eventually(lambda: "from 1 on may not have been handled" in why(), "it is held still")
        pulls = len(broker.pulled_offsets(queue))
        await eventually(lambda: len(broker.pulled_offsets(queue)) > pulls + 2, "it is asked again and again")
        assert not seen.bodies
        broker.answer_pull(queue, broker.nothing(queue, MOVED, 3, "OFFSET_RESET"))
        await seen.has(b"3")
        await broker.committed(GROUP, queue, 4)


async def test_an_operators_reset_goes_back(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    """What was cached or in a handler is forgotten, and later results of it change nothing."""
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


async def test_a_broken_connection_is_made_again(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    """The pull that it ended is asked again."""
    async with member(broker.peer.address, seen):
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "the first pull waits")
        broker.peer.cut()
        await broker.store(queue, b"0")
        await seen.has(b"0")


async def test_tags_are_checked_behind_the_brokers_hash_check(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """`Aa` and `BB` have one hash in Java, so the broker gives both."""
    for body, tag in [(b"0", "Aa"), (b"1", "BB"), (b"2", "Aa"), (b"3", "BB")]:
        await broker.store(queue, body, properties={"TAGS": tag})
    async with member(
        broker.peer.address, seen, subscriptions={TOPIC: "BB || other"}, persist_consumer_offset_interval_seconds=0.05
    ) as m:
        await seen.has(b"1", b"3")
        await broker.committed(GROUP, queue, 4)
        assert m.topic().received == 2
    assert broker.pulls[0].expression_type == "TAG"


async def test_a_queue_that_waits_for_messages_has_one_snapshot_until_something_happens(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, flowing: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history takes one every few seconds, of thousands of queues."""
    monkeypatch.setattr("rmqd.consumer.offsets.broker_store.OFFSET_WATCH_SECONDS", 1.0)  # so long no queue is idle
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await broker.committed(GROUP, queue, 1)
        await eventually(lambda: m.queue() is not None and m.queue() is m.queue(), "it waits")
        before = m.queue()
        await broker.store(queue, b"1")
        await eventually(lambda: m.queue() is not before, "a message came")
        m.consumer.pause()
        await eventually(lambda: (q := m.queue()) is not None and q.state == "paused", "it is paused")
