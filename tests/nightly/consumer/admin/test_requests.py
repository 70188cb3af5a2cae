"""Responses of a member to requests that brokers forward for operators."""

from __future__ import annotations

import pytest

from rmqd.codes import ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.admin.test_requests import (
    RESET,
    STATUS,
    UPDATE,
    Holding,
    as_list,
    as_map,
    reset_fields,
    running_info,
)
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import member
from tests.consumer.scripted_broker import BROKER, ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("hasty", "unpaced")


async def test_a_reset_during_the_last_commit_is_committed_after_it(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    await broker.store(queue, b"0", b"1", b"2")

    async def reset_meanwhile(command: RemotingCommand) -> Reply:
        if command.ext_fields["commitOffset"] == "3":
            await broker.peer.push(RESET, reset_fields(), as_map({queue: 1}), oneway=True)
            await broker.peer.ask(STATUS, {"topic": TOPIC, "group": GROUP})
        return broker.update(command)

    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=60) as m:
        await seen.has(b"0", b"1", b"2")
        await eventually(lambda: m.topic().handled["acked"] == 3, "all are handled")
        broker.peer.on(UPDATE, reset_meanwhile)
        await m.stop()
    assert broker.commits_of(queue)[-2:] == [3, 1]


async def test_a_reset_does_not_wait_for_a_queue_of_another_member(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That member has applied the reset itself. A later owner continues at the stored offset."""
    monkeypatch.setattr("rmqd.consumer.pull.assigned_queue.RESET_VALID_SECONDS", 0.0)
    await broker.store(queue, *[b"%d" % number for number in range(5)])
    broker.offsets[GROUP, queue] = 3
    broker.locks[GROUP, queue] = "somebody else"
    async with member(broker.peer.address, seen, consume_mode="orderly") as m:
        await eventually(lambda: queue in m.consumer._rebalance.assigned, "it waits for the lock")
        await broker.peer.push(RESET, reset_fields(), as_map({queue: 0}), oneway=True)
        await broker.peer.ask(STATUS, {"topic": TOPIC, "group": GROUP})
        del broker.locks[GROUP, queue]
        await seen.has(b"3", b"4")
    assert 0 not in broker.commits_of(queue)


async def test_running_info_shows_the_cached_messages(broker: ScriptedBroker, queue: MessageQueue) -> None:
    await broker.store(queue, *[b"%d" % number for number in range(9)])
    handle = Blocked()
    async with member(broker.peer.address, handle, concurrency=1) as m:
        await eventually(lambda: (held := m.queue()) is not None and held.cached == 9, "all are cached")
        before, info = m.consumer.context.clock.wall() * 1000, (await running_info(broker)).mq_table[queue]
        handle.release.set()
    assert (info.commit_offset, info.cached_msg_count) == (0, 9)
    assert (info.cached_msg_min_offset, info.cached_msg_max_offset) == (0, 8)
    assert not info.dropped
    assert before - 10_000 < info.last_pull_timestamp <= info.last_consume_timestamp + 1
    assert info.last_consume_timestamp < before + 10_000


async def test_running_info_of_an_orderly_group_shows_its_locks(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """For a queue that another member has locked, it shows since when this member waits."""
    _, other = broker.create_topic(TOPIC, 2)
    broker.locks[GROUP, other] = "somebody else"
    async with member(broker.peer.address, seen, consume_mode="orderly") as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "the locked queue is pulled")
        now_ms = m.consumer.context.clock.wall() * 1000
        info = await running_info(broker)
    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    held, waited_for = info.mq_table[queue], info.mq_table[other]
    assert (held.locked, waited_for.locked, waited_for.commit_offset) == (True, False, -1)
    for found in (held, waited_for):
        assert abs(found.last_lock_timestamp - now_ms) < 10_000


async def test_running_info_includes_stacks_on_request(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """The stack of each task, down to the handler's line, and the threads."""
    await broker.store(queue, b"0")
    handle = Holding()
    async with member(broker.peer.address, handle):
        await handle.begun.wait()
        jstack = (await running_info(broker, jstack=True)).jstack or ""
        handle.release.set()
    assert "Blocked.__call__" in jstack
    assert f"queue:{queue}" in jstack
    assert "MainThread" in jstack


@pytest.mark.slow
async def test_a_reset_of_very_many_queues_does_not_block_the_group(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Most queues belong to other members."""
    foreign = {MessageQueue(TOPIC, BROKER, number): 1 for number in range(1, 40_000)}
    async with member(broker.peer.address, seen) as m:
        await eventually(lambda: m.owned() == {(TOPIC, 0)}, "it runs")
        await broker.peer.push(RESET, reset_fields(), as_list(foreign), oneway=True)
        answer = await broker.peer.ask(STATUS, {"topic": TOPIC, "group": GROUP})
        assert answer.code == ResponseCode.SUCCESS
        await broker.store(queue, b"0")
        await seen.has(b"0")


async def test_a_batch_in_flight_at_a_reset_does_not_move_the_offset(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """The batch ends after the reset. The offset keeps the operator's value, also in later commits."""
    await broker.store(queue, b"0", b"1", b"2")
    handle = Holding()
    options = {"concurrency": 1, "consume_message_batch_max_size": 3, "persist_consumer_offset_interval_seconds": 0.02}
    async with member(broker.peer.address, handle, clock=flowing, **options) as m:  # type: ignore[arg-type]
        await handle.begun.wait()
        m.consumer.pause()
        await broker.peer.push(RESET, reset_fields(), as_map({queue: 1}), oneway=True)
        await broker.committed(GROUP, queue, 1)
        handle.release.set()
        await eventually(lambda: m.topic().duplicates == {"offset_moved": 3}, "the batch ended, and does not count")
        await flowing.sleep(5)  # rounds of commits
        assert broker.offsets[GROUP, queue] == 1
    assert broker.commits_of(queue)[-1] == 1


async def test_a_queue_is_released_only_after_the_batch_from_before_a_reset_ended(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    """Its result is ignored, but no other member may have the queue while it is in flight."""
    await broker.store(queue, b"0", b"1")
    handle = Holding()
    async with member(broker.peer.address, handle, concurrency=1, consume_mode="orderly") as m:
        await handle.begun.wait()
        await broker.peer.push(RESET, reset_fields(), as_map({queue: 2}), oneway=True)
        await broker.committed(GROUP, queue, 2)
        m.consumer.stop()
        await eventually(lambda: m.consumer.snapshot().state == "draining", "it drains")
        await broker.peer.ask(STATUS, {"topic": TOPIC, "group": GROUP})
        assert (GROUP, queue) in broker.locks
        handle.release.set()
        await m.task
    assert (GROUP, queue) not in broker.locks
    assert broker.offsets[GROUP, queue] == 2


async def test_a_reset_applies_to_a_queue_that_is_being_acquired(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """The previous owner is gone, or has missed the reset. The new owner starts at the reset offset."""
    await broker.store(queue, *[b"%d" % number for number in range(5)])
    broker.offsets[GROUP, queue] = 4
    broker.create_topic("t2")
    async with member(broker.peer.address, seen, subscriptions=["t2"], queue_handover_timeout_seconds=5) as m:
        await eventually(lambda: m.owned() == {("t2", 0)}, "it runs")
        later = MessageQueue("t2", BROKER, 1)
        await broker.peer.push(RESET, reset_fields("t2"), as_map({later: 2}), oneway=True)
        await broker.peer.ask(STATUS, {"topic": "t2", "group": GROUP})
        broker.create_topic("t2", 2)
        broker.offsets[GROUP, later] = 4
        await broker.store(later, *[b"%d" % number for number in range(5)])
        m.client.routes.refresh_soon(["t2"])
        await seen.has(b"2", b"3", b"4")


async def test_an_invalid_reset_changes_nothing(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    """It is logged, and the connection stays. A request that expects a response gets the error."""
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen):
        await seen.has(b"0")
        connections = broker.peer.connections
        for body in (b"", b"{", b"[]", b'{"offsetTable":{1:2}}', as_map({queue: -1})):
            answer = await broker.peer.ask(RESET, reset_fields(), body)
            assert (answer.code, bool(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True), body
            opaque = await broker.peer.push(RESET, reset_fields(), body, oneway=True)
            assert opaque not in broker.peer.answers
        await broker.store(queue, b"1")
        await seen.has(b"0", b"1")
        assert broker.peer.connections == connections
