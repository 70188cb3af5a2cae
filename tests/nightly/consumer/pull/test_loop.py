"""A consumer with a scripted broker: unusual responses to pulls."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.pull.test_loop import MOVED, NOT_FOUND
from tests.consumer.scripted_broker import BROKER, ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("hasty")


async def test_commits_continue_after_a_reset_that_could_not_be_committed(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """They must not be left out because they are below the earlier offset."""
    await broker.store(queue, *[b"x"] * 50)
    broker.offsets[GROUP, queue] = 50
    broker.answer_pull(queue, broker.nothing(queue, MOVED, 10, "OFFSET_RESET"))
    failures = 1

    def refuse_once(command: object) -> Reply:
        nonlocal failures
        if failures:
            failures -= 1
            return Reply(ResponseCode.SYSTEM_ERROR, "not now")
        return broker.update(command)  # type: ignore[arg-type]

    broker.peer.on(RequestCode.UPDATE_CONSUMER_OFFSET, refuse_once)
    release = asyncio.Event()

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset == 20:
            await release.wait()

    async with member(broker.peer.address, handle, persist_consumer_offset_interval_seconds=0.05):
        await broker.committed(GROUP, queue, 20)
        release.set()
        await broker.committed(GROUP, queue, 50)


async def test_a_deleted_retry_topic_is_created_again_by_a_heartbeat(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting a group deletes its retry topic, too."""
    beats: list[str] = []
    async with member(broker.peer.address, seen) as m:
        retries = MessageQueue(retry_topic(GROUP), BROKER, 0)
        await eventually(lambda: broker.pulled_offsets(retries) == [0], "the retry topic is pulled")
        monkeypatch.setattr(m.client.heartbeat, "send_heartbeats_soon", lambda: beats.append("soon"))
        broker.answer_pull(retries, Reply(ResponseCode.TOPIC_NOT_EXIST, "not exist, apply first please"))
        m.consumer._rebalance.assigned[retries].restart_loop()
        await eventually(lambda: beats == ["soon"], "a heartbeat is requested")
        await eventually(lambda: len(broker.pulled_offsets(retries)) == 3, "it is pulled again")


@pytest.mark.parametrize("next_offset", [0, 3])
async def test_a_broker_that_never_holds_pulls_is_not_pulled_in_a_tight_loop(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, next_offset: int, flowing: ManualClock
) -> None:
    """As during its shutdown, whatever next offset it returns."""
    broker.offsets[GROUP, queue] = 3
    await broker.store(queue, b"0", b"1", b"2")
    broker.answer_pull(queue, *[broker.nothing(queue, NOT_FOUND, next_offset)] * 10_000)
    async with member(broker.peer.address, seen, clock=flowing):
        await eventually(lambda: broker.pulled_offsets(queue), "the first pull came")
        await flowing.sleep(0.5)
        assert 2 <= len(broker.pulled_offsets(queue)) <= 8
        assert set(broker.pulled_offsets(queue)) == {3}


async def test_a_reply_that_does_not_advance_is_an_error(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Otherwise its messages would be handled again and again."""
    await broker.store(queue, b"0", b"1")
    broker.answer_pull(queue, broker.found(queue, broker.records(queue, 0, 1), 0))
    async with member(broker.peer.address, seen):
        await seen.has(b"0", b"1")


async def test_simultaneous_failed_starts_are_one_log_entry_per_broker(
    broker: ScriptedBroker, seen: Seen, clock: ManualClock
) -> None:
    broker.create_topic(TOPIC, 8)
    broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, Reply(ResponseCode.SYSTEM_ERROR, "not now"))
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, clock=clock):
            await clock.until(
                lambda: len([x for x in logs if x["event"] == "queue.start_failed"]) == 3, "they are logged"
            )
    told = [(line["broker"], line["queues"]) for line in logs if line["event"] == "queue.start_failed"]
    assert {broker for broker, _ in told} == {"a"}
    assert sum(queues for _, queues in told) > 8
