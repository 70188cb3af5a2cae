"""Stalled queues of a scripted broker: their reports, and their recovery."""

from __future__ import annotations

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.health.watchdog import CHECK_INTERVAL_SECONDS, STALL_SECONDS
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Peer, Reply
from tests.clock import ManualClock
from tests.consumer.groups import TOPIC, Blocked, Gathering
from tests.consumer.health.test_watchdog import Logs, events, goes_on, logs, stall, stands_still, state
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["logs"]


async def test_new_messages_behind_a_slow_handler_are_not_progress(
    broker: ScriptedBroker, queue: MessageQueue, logs: Logs, flowing: ManualClock
) -> None:
    """No message is finished, though one arrives every second."""
    handle = Blocked()
    await broker.store(queue, b"0")
    async with member(broker.peer.address, handle, clock=flowing, concurrency=1) as m:
        for number in range(1, int(2 * STALL_SECONDS)):
            await broker.store(queue, b"%d" % number)
            await flowing.sleep(1)
        problem = stall(m)
        assert problem is not None
        assert problem.cause == "slow_handler"
        handle.release.set()
        await goes_on(m, logs, "slow_handler")


async def test_a_queue_is_stalled_if_another_queue_uses_all_slots(
    broker: ScriptedBroker, logs: Logs, flowing: ManualClock
) -> None:
    """Its own messages have not reached a handler yet."""
    first, second = broker.create_topic(TOPIC, 2)
    handle = Blocked()
    await broker.store(first, b"0", b"1")
    async with member(broker.peer.address, handle, clock=flowing, concurrency=1) as m:
        await eventually(lambda: state(m, 0) == "handling", "the only slot is taken")
        await broker.store(second, b"2")
        problem = await stands_still(m, logs, "slow_handler", 1)
        assert "all 1 slots" in problem.evidence
        handle.release.set()
        await eventually(lambda: stall(m, 0) is None and stall(m, 1) is None, "both continue")


async def test_a_queue_without_cached_messages_can_be_stalled(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """It is paused before its first pull, and the broker reports that messages wait."""
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen, clock=flowing) as m:
        m.consumer.pause()
        await stands_still(m, logs, "paused")
        snapshot = m.queue()
        assert snapshot is not None
        assert (snapshot.cached, snapshot.lag) == (0, 1)
        assert not seen.bodies


async def test_a_stall_ends_when_the_broker_answers_again(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """The next pull is held while no message arrives, so it reports nothing until then."""
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "it pulls")
        await broker.peer.down()
        await stands_still(m, logs, "broker_unreachable")
        await broker.peer.listen()
        await goes_on(m, logs, "broker_unreachable")
    assert set(broker.pulled_offsets(queue)) == {0}


async def test_queues_that_stall_together_are_one_log_entry(
    broker: ScriptedBroker, logs: Logs, flowing: ManualClock
) -> None:
    """There is only one entry while the cause is the same."""
    queues = broker.create_topic(TOPIC, 3)
    handle = Blocked()
    for queue in queues:
        await broker.store(queue, b"0", b"1")
    async with member(broker.peer.address, handle, clock=flowing, concurrency=3) as m:
        await eventually(lambda: all(stall(m, number) for number in range(3)), "all are reported as stalled")
        await flowing.sleep(CHECK_INTERVAL_SECONDS * 3)
        handle.release.set()
    [entry] = events(logs, "queue.stalled")
    assert (entry["topic"], entry["queues"]) == (TOPIC, [0, 1, 2])


async def test_messages_that_no_broker_accepts_for_a_retry_are_reported(
    broker: ScriptedBroker, queue: MessageQueue, logs: Logs, flowing: ManualClock
) -> None:
    """Until a broker accepts them. Meanwhile attempts are counted locally, as in Java."""
    attempts: list[int] = []
    refused = Reply(ResponseCode.SYSTEM_ERROR, "disk full")
    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, refused)
    broker.peer.on(RequestCode.SEND_MESSAGE_V2, refused)

    async def fail(batch: Batch) -> None:
        attempts.append(batch[0].reconsume_times)
        raise ValueError("no")

    await broker.store(queue, b"0")
    async with member(broker.peer.address, fail, clock=flowing) as m:
        problem = await stands_still(m, logs, "retry_refused")
        assert "offset 0" in problem.evidence
        (of_group,) = (one for one in m.consumer.snapshot().problems if one.cause == "retry_refused")
        assert f"{queue} offset 0 (refused" in of_group.evidence
        assert "disk full" in of_group.evidence
        step = f"`rmqd offsets reset {m.consumer.snapshot().name} '{queue.topic}' --to 1 --broker {queue.broker_name}"
        assert step in of_group.next
        assert max(attempts) >= 1
        broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, Reply())
        await goes_on(m, logs, "retry_refused")
        problems = m.consumer.snapshot
        await eventually(lambda: all(one.cause != of_group.cause for one in problems().problems), "it ends")


@pytest.mark.parametrize("is_open", [False, True], ids=["idle", "with an open call"])
async def test_open_calls_do_not_hide_other_causes(
    broker: ScriptedBroker, queue: MessageQueue, logs: Logs, flowing: ManualClock, is_open: bool
) -> None:
    """The open calls alone are not a stall, but failing pulls are."""
    reply = Reply(ResponseCode.NO_PERMISSION, "the topic[t] pulling message is forbidden")
    await broker.store(queue, b"0")
    if not is_open:
        broker.answer_pull(queue, *[reply] * 10_000)
    async with member(broker.peer.address, Gathering(), clock=flowing) as m:
        if is_open:
            await eventually(lambda: ((q := m.queue()) and q.handling) or None, "the handler has the message")
            await flowing.sleep(STALL_SECONDS + 3 * CHECK_INTERVAL_SECONDS)
            assert stall(m) is None
            broker.answer_pull(queue, *[reply] * 10_000)
        await stands_still(m, logs, "no_permission")


async def test_an_unreachable_broker_is_reported(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """It is unknown then whether messages wait there."""
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "it pulls")
        await broker.peer.down()
        await stands_still(m, logs, "broker_unreachable")
        assert state(m) == "stuck"
        await broker.peer.listen()
        await broker.store(queue, b"0")
        await seen.has(b"0")
        await goes_on(m, logs, "broker_unreachable")


async def test_a_queue_that_cannot_be_acquired_is_shown(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """It has no offset, and would otherwise not be shown at all."""
    broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, Reply(ResponseCode.NO_PERMISSION, "not for you"))
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await stands_still(m, logs, "no_permission")
        assert state(m) == "stuck"
        broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, broker.query)
        await seen.has(b"0")
        await goes_on(m, logs, "no_permission")


async def test_unreachable_name_servers_are_a_problem_of_the_group(logs: Logs, flowing: ManualClock) -> None:
    """It is unknown then whether the topic exists."""
    async with Peer() as gone:
        pass
    async with member(gone.address, Seen(), clock=flowing) as m:
        await eventually(lambda: m.consumer.snapshot().problems, "the problem is reported")
        [problem] = m.consumer.snapshot().problems
        assert problem.cause == "no_route"
        async with gone:
            broker = ScriptedBroker(gone)
            broker.create_topic(TOPIC)
            await eventually(lambda: not m.consumer.snapshot().problems, "it is over")
