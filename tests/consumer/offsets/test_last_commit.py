"""The last commit of a queue: at a stop, at a hand-over, and when the group fails."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.handler_api.batch import Batch
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
SLOW_SECONDS = 1.3  # a slow response, within the deadline of a commit


async def handle(batch: Batch) -> None:
    """Finish at once."""


async def test_the_last_commit_waits_for_a_commit_in_flight_at_a_slow_broker(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    await broker.store(queue, *[b"x"] * 6)
    release = asyncio.Event()

    async def slow_at_the_end(batch: Batch) -> None:
        if batch[0].queue_offset == 5:
            await release.wait()

    async def update(command: RemotingCommand) -> Reply:
        if command.ext_fields["commitOffset"] == "5":
            await release.wait()
            await flowing.sleep(SLOW_SECONDS)
        return broker.update(command)

    broker.peer.on(UPDATE, update)
    async with member(
        broker.peer.address, slow_at_the_end, clock=flowing, persist_consumer_offset_interval_seconds=60
    ) as only:
        await eventually(lambda: (row := only.queue()) is not None and row.cached == 1, "all but one are handled")
        only.consumer.stop(shutdown_timeout_seconds=10)
        await eventually(
            lambda: any(c.ext_fields["commitOffset"] == "5" for c in broker.peer.got(UPDATE)), "a commit is in flight"
        )
        release.set()
        await only.task
    assert broker.commits_of(queue)[-2:] == [5, 6]


@pytest.mark.parametrize("trouble", ["the connection is cut", "the broker is busy once"])
async def test_a_failed_last_commit_of_a_stop_is_repeated(
    broker: ScriptedBroker, queue: MessageQueue, trouble: str, flowing: ManualClock
) -> None:
    await broker.store(queue, *[b"x"] * 50)

    def update(command: RemotingCommand) -> Reply | None:
        broker.peer.on(UPDATE, broker.update)
        if trouble == "the broker is busy once":
            return Reply(ResponseCode.SYSTEM_BUSY, "too many requests")
        broker.peer.cut()
        return None

    async with member(broker.peer.address, handle, clock=flowing, persist_consumer_offset_interval_seconds=60) as only:
        await eventually(lambda: only.topic().handled["acked"] == 50, "all is handled")
        broker.peer.on(UPDATE, update)
        await only.stop()
        duplicates = only.topic().duplicates
    assert broker.offsets[GROUP, queue] == 50
    assert not duplicates


async def test_messages_that_a_stop_cannot_commit_count_as_handled_twice(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    await broker.store(queue, *[b"x"] * 50)
    options: dict[str, Any] = {"persist_consumer_offset_interval_seconds": 60, "pull_batch_size": 50}
    async with member(broker.peer.address, handle, clock=flowing, **options) as only:
        await eventually(lambda: only.topic().handled["acked"] == 50, "all is handled")
        broker.peer.on(UPDATE, Reply(ResponseCode.SYSTEM_BUSY, "too many requests"))
        await only.stop(shutdown_timeout_seconds=0)
        assert only.topic().duplicates == {"stopped": 50}


async def test_a_failing_group_commits_finished_messages_and_releases_its_locks(
    broker: ScriptedBroker, flowing: ManualClock
) -> None:
    """The handler of one queue hangs. The other queue's messages are not redelivered."""
    healthy, sick = broker.create_topic(TOPIC, 2)
    await broker.store(healthy, *[b"x"] * 30)
    let_go = threading.Event()

    def hang(batch: Batch) -> None:
        if batch[0].queue_id == sick.queue_id:
            let_go.wait()

    options: dict[str, Any] = {"consume_timeout_seconds": 5.0, "concurrency": 1}
    options["persist_consumer_offset_interval_seconds"] = 60
    with contextlib.suppress(ExceptionGroup):
        async with member(broker.peer.address, hang, is_async=False, clock=flowing, **options) as only:
            await eventually(lambda: only.topic().handled["acked"] == 30, "the healthy queue is handled")
            await broker.store(sick, b"x")
            await asyncio.wait((only.task,))
            failure = only.consumer.snapshot().failure
            let_go.set()
    assert "handler_hung" in (failure or "")
    assert broker.offsets[GROUP, healthy] == 30
    assert not broker.locks
