"""A consumer against a scripted broker: every answer to a pull."""

from __future__ import annotations

import asyncio

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic
from tests.client.peer import Reply
from tests.consumer.groups import GROUP
from tests.consumer.members import member
from tests.consumer.pull.test_loop import MOVED
from tests.consumer.scripted_broker import BROKER, ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("hasty")


async def test_commits_go_on_after_a_reset_that_could_not_be_committed(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """They would be left out as long as they are below what was known before."""
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


async def test_a_retry_topic_that_was_deleted_is_made_anew_by_a_heartbeat(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting a group deletes it too."""
    beats: list[str] = []
    async with member(broker.peer.address, seen) as m:
        retries = MessageQueue(retry_topic(GROUP), BROKER, 0)
        await eventually(lambda: broker.pulled_offsets(retries) == [0], "the retry topic is pulled")
        monkeypatch.setattr(m.client.heartbeat, "beat_soon", lambda: beats.append("soon"))
        broker.answer_pull(retries, Reply(ResponseCode.TOPIC_NOT_EXIST, "not exist, apply first please"))
        m.consumer._rebalance.assigned[retries].restart()
        await eventually(lambda: beats == ["soon"], "a heartbeat is asked for")
        await eventually(lambda: len(broker.pulled_offsets(retries)) == 3, "it is pulled again")
