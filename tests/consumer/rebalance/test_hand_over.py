"""Hand-overs between members: the new owner's start, the old owner's commits, and the waits."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode
from rmqd.consumer.rebalance.membership import MEMBER_RETURN_SECONDS, MISSING_MEMBER_SECONDS
from rmqd.handler_api.batch import Batch
from rmqd.wire.bodies.group_bodies import ConsumerRunningInfo, ProcessQueueInfo
from rmqd.wire.bodies.stats_bodies import Connection, ConsumerConnection
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("unpaced")

QUEUES = 4


class Ledger:
    """A handler for all members that counts finished messages, and takes `seconds` for each batch."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.finished = Counter[tuple[int, int]]()

    async def __call__(self, batch: Batch) -> None:
        await asyncio.sleep(self.seconds)
        self.finished.update((message.queue_id, message.queue_offset) for message in batch)


def owners(*members: Member) -> list[int]:
    return [len(one.owned()) for one in members]


async def test_a_joining_member_waits_for_the_old_owners_commit(broker: ScriptedBroker) -> None:
    """No finished message is handled again, although handlers are slow and offsets are committed rarely."""
    queues = broker.create_topic(TOPIC, QUEUES)
    for queue in queues:
        await broker.store(queue, *[b"x"] * 40)
    ledger = Ledger(0.05)
    async with member(broker.peer.address, ledger, persist_consumer_offset_interval_seconds=60) as old:
        await eventually(lambda: len(ledger.finished) > 40, "the old owner is at work")
        async with member(broker.peer.address, ledger) as new:
            await eventually(lambda: owners(old, new) == [2, 2], "both have their share")
            await eventually(lambda: len(ledger.finished) == 40 * QUEUES, "all is handled")
            assert old.consumer.snapshot().handover_timeouts == new.consumer.snapshot().handover_timeouts == 0
            # the hand-over back
            before = len(broker.pulls)
            await new.stop()
            await eventually(lambda: owners(old) == [QUEUES], "the old owner has all queues again")
            await eventually(lambda: len(broker.pulls) > before, "and pulls them")
    assert set(ledger.finished.values()) == {1}


async def test_a_leaving_member_commits_unlocks_and_only_then_unregisters(broker: ScriptedBroker) -> None:
    """So other members need not wait for it. Its commits are requests with responses, not one-way."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, *[b"x"] * 10)
    ledger = Ledger()
    async with member(broker.peer.address, ledger, persist_consumer_offset_interval_seconds=60) as only:
        await eventually(lambda: len(ledger.finished) == 10, "all is handled")
        await only.stop()
        order = [RequestCode(request.code).name for request in broker.peer.requests]
        commits = broker.peer.got(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert broker.offsets[GROUP, queue] == 10
    assert not any(command.is_oneway for command in commits)
    last = {name: max(i for i, other in enumerate(order) if other == name) for name in set(order)}
    assert last["PULL_MESSAGE"] < last["UPDATE_CONSUMER_OFFSET"] < last["UNLOCK_BATCH_MQ"] < last["UNREGISTER_CLIENT"]
    assert not broker.locks


async def test_the_lock_does_not_use_the_groups_name(broker: ScriptedBroker) -> None:
    """While a lock has the group's name, brokers move messages sent to its retry topic to the dead letters."""
    broker.create_topic(TOPIC, QUEUES)
    async with member(broker.peer.address, Ledger()) as only:
        await eventually(lambda: len(only.owned()) == QUEUES, "the queues are acquired")
        assert {name for name, _ in broker.locks} == {f"{GROUP}-rmqd-owner"}


async def test_after_the_hand_over_timeout_the_old_owner_commits_nothing_more(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages finished before the slow batch are committed. The others count as duplicates, by cause."""
    monkeypatch.setattr(
        "rmqd.consumer.rebalance.rebalance.MIN_PASS_INTERVAL_SECONDS", 0.0
    )  # the hand-over timeout is shorter here
    queues = broker.create_topic(TOPIC, 2)
    gates = {3: asyncio.Event(), 5: asyncio.Event()}
    seen = Counter[tuple[int, int]]()

    async def slow(batch: Batch) -> None:
        if gate := gates.get(batch[0].queue_offset):
            await gate.wait()
        seen[batch[0].queue_id, batch[0].queue_offset] += 1

    for queue in queues:
        await broker.store(queue, *[b"x"] * 10)
    times: dict[str, Any] = {"queue_handover_timeout_seconds": 0.3, "persist_consumer_offset_interval_seconds": 60.0}
    async with member(broker.peer.address, slow, **times) as old:
        await eventually(lambda: len(seen) == 16, "all but the slow ones are handled")
        with capture_logs() as logs:
            async with member(broker.peer.address, Ledger(), **times) as new:
                await eventually(lambda: {3} <= {at for _, at in broker.commits}, "finished messages are committed")
                gates[3].set()
                await eventually(lambda: owners(old, new) == [1, 1], "both have their share")
                [(_, moved)] = new.owned()
                queue = queues[moved]
                await eventually(lambda: new.topic().handled["acked"] == 7, "the new owner handles the rest")
                assert old.topic().duplicates == {"handed_over": 6}, "3 and 4 ended after the commit"
                gates[5].set()
                await eventually(
                    lambda: old.topic().duplicates == {"handed_over": 7}, "the slow batch's result is ignored"
                )
                assert broker.commits_of(queue) == [0, 3], "nothing after the timeout"
                await new.stop()
                assert broker.commits_of(queue) == [0, 3, 10]
    assert broker.pulled_offsets(queue).count(3) == 1
    assert "queue.not_drained" in [entry["event"] for entry in logs]


async def test_an_owner_that_does_not_release_is_waited_for_until_the_timeout(broker: ScriptedBroker) -> None:
    """The timeout is counted, and logged for each queue."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"x")
    broker.members[GROUP] += ["~@stalls"]
    broker.locks[f"{GROUP}-rmqd-owner", queue] = "~@stalls"
    ledger = Ledger()
    with capture_logs() as logs:
        async with member(broker.peer.address, ledger, queue_handover_timeout_seconds=0.4) as new:
            begin = time.monotonic()
            await eventually(lambda: ledger.finished, "the new owner is at work")
            assert time.monotonic() - begin > 0.35
            assert new.consumer.snapshot().handover_timeouts == 1
    [entry] = [entry for entry in logs if entry["event"] == "queue.handover_timed_out"]
    assert entry["queue"] == str(queue)


async def test_a_member_that_is_alone_waits_for_no_owner(broker: ScriptedBroker, flowing: ManualClock) -> None:
    """The lock of an unlisted member belongs to a missing member. It expires, and is then acquired."""
    [queue] = broker.create_topic(TOPIC)
    broker.locks[f"{GROUP}-rmqd-owner", queue] = "gone"
    async with member(broker.peer.address, Ledger(), clock=flowing) as only:
        await eventually(lambda: only.owned() == {(TOPIC, 0)}, "the queue is acquired")
        assert only.consumer.snapshot().handover_timeouts == 0
        del broker.locks[f"{GROUP}-rmqd-owner", queue]
        await eventually(
            lambda: broker.locks.get((f"{GROUP}-rmqd-owner", queue)) == only.client.client_id, "the lock is acquired"
        )


async def test_a_member_listed_again_is_waited_for_without_a_notification(
    broker: ScriptedBroker, flowing: ManualClock
) -> None:
    """A broker that lost all connections may list a new member first, and the queues' owner a moment later."""
    broker.notifies = False
    [queue] = broker.create_topic(TOPIC)
    broker.locks[f"{GROUP}-rmqd-owner", queue] = "~@back"
    async with member(broker.peer.address, Ledger(), clock=flowing, queue_handover_timeout_seconds=10) as new:
        await eventually(lambda: broker.peer.got(RequestCode.LOCK_BATCH_MQ), "the new member waits")
        broker.members[GROUP].append("~@back")
        await flowing.sleep(MEMBER_RETURN_SECONDS + 2 * MISSING_MEMBER_SECONDS)
        assert new.owned() == set()
        del broker.locks[f"{GROUP}-rmqd-owner", queue]
        await eventually(lambda: new.owned() == {(TOPIC, 0)}, "the queue is acquired")
        assert new.consumer.snapshot().handover_timeouts == 0


@pytest.mark.parametrize("way", ["handed over", "stopped"])
async def test_a_previous_owner_commits_only_upward(broker: ScriptedBroker, way: str) -> None:
    """A Java member does not wait, and may already have committed a higher offset."""
    queues = broker.create_topic(TOPIC, 2)
    for queue in queues:
        await broker.store(queue, *[b"x"] * 10)
    ledger = Ledger()
    async with member(broker.peer.address, ledger, persist_consumer_offset_interval_seconds=60) as old:
        await eventually(lambda: len(ledger.finished) == 20, "all is handled")
        for queue in queues:
            broker.offsets[GROUP, queue] = 15
        if way == "stopped":
            await old.stop()
        else:
            broker.members[GROUP] += ["0@java", "~@java"]  # whatever our own id is, one sorts before it, one after it
            await broker.peer.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": GROUP}, oneway=True)
            await eventually(lambda: owners(old)[0] <= 1, "a queue is released")
            await eventually(lambda: len(broker.locks) <= 2, "and unlocked")
    assert [broker.offsets[GROUP, queue] for queue in queues] == [15, 15]


async def test_a_queue_assigned_again_during_its_release_is_acquired_again(broker: ScriptedBroker) -> None:
    """The rebalance is counted once for each change, not once a second."""
    queues = broker.create_topic(TOPIC, 2)
    release = asyncio.Event()

    async def slow(batch: Batch) -> None:
        await release.wait()

    for queue in queues:
        await broker.store(queue, b"x")
    async with member(broker.peer.address, slow) as only:
        await eventually(lambda: owners(only) == [2], "the queues are acquired")
        await eventually(lambda: all(q.cached for q in only.consumer.snapshot().queues if not q.is_retry), "at work")
        before = only.consumer.snapshot().rebalances
        broker.create_topic(TOPIC, 1)
        await only.client.routes.refresh(TOPIC)
        await eventually(lambda: only.consumer.snapshot().rebalances == before + 1, "a release has begun")
        broker.create_topic(TOPIC, 2)
        await only.client.routes.refresh(TOPIC)
        for _ in range(3):
            await broker.peer.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": GROUP}, oneway=True)
            await asyncio.sleep(0.02)
        assert only.consumer.snapshot().rebalances == before + 1
        release.set()
        await eventually(lambda: broker.pulled_offsets(queues[1]).count(1) >= 2, "it is acquired and pulled again")
        assert only.consumer.snapshot().rebalances == before + 2
    assert [broker.offsets[GROUP, queue] for queue in queues] == [1, 1]


@pytest.mark.parametrize("way", ["handed over", "stopped"])
async def test_the_commits_of_a_queue_are_sent_one_after_the_other(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A busy broker could execute the last commit first, and then store the older offset."""
    monkeypatch.setattr("rmqd.consumer.offsets.broker_store.OFFSET_TIMEOUT_SECONDS", 60)  # a machine may be busy, too
    queues = broker.create_topic(TOPIC, 2)
    under_way = most = 0
    release, answer = asyncio.Event(), asyncio.Event()

    async def update(command: RemotingCommand) -> Reply:
        nonlocal under_way, most
        fields = command.ext_fields
        # the other queue's commits are answered: a round may have begun before this queue had anything to commit
        if (fields["topic"], fields["queueId"]) == (TOPIC, "1") and fields["commitOffset"] != "0":
            under_way += 1
            most = max(most, under_way)
            await answer.wait()
            under_way -= 1
        return broker.update(command)

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset == 2:
            await release.wait()

    for queue in queues:
        await broker.store(queue, *[b"x"] * 4)
    broker.peer.on(RequestCode.UPDATE_CONSUMER_OFFSET, update)
    async with member(broker.peer.address, handle, persist_consumer_offset_interval_seconds=0.02) as old:
        await eventually(lambda: under_way, "a commit is in flight")
        if way == "stopped":
            old.consumer.stop(shutdown_timeout_seconds=5)
            await eventually(lambda: old.consumer.snapshot().state == "draining", "it drains")
        else:
            broker.create_topic(TOPIC, 1)
            old.client.routes.refresh_soon()
            await eventually(lambda: old.consumer.snapshot().rebalances > 2, "a release has begun")
        release.set()
        await asyncio.sleep(0.1)
        answer.set()
        await broker.committed(GROUP, queues[1], 4)
    assert most == 1


async def test_messages_in_a_java_members_late_commit_count_as_handled_twice(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    """A Java member commits once more although its queue already has a new owner."""
    await broker.store(queue, *[b"x"] * 10)
    async with member(broker.peer.address, Ledger(), persist_consumer_offset_interval_seconds=0.05) as new:
        await broker.committed(GROUP, queue, 10)
        broker.offsets[GROUP, queue] = 14
        await eventually(lambda: new.topic().duplicates == {"handed_over": 4}, "it is counted")
        await broker.store(queue, *[b"x"] * 8)
        await broker.committed(GROUP, queue, 18)
        assert 4 not in broker.commits_of(queue)


async def test_a_member_starts_at_the_last_commit_of_a_java_owner(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """The Java owner handles cached messages until it notices the new member. Then it commits and drops the queue."""
    await broker.store(queue, *[b"x"] * 3)
    broker.offsets[GROUP, queue] = 0
    await broker.gain(GROUP, "java")
    ledger, hears_at = Ledger(), flowing.now + 2

    def tell(_: RemotingCommand) -> Reply:
        if flowing.now < hears_at:
            return Reply(body=ConsumerRunningInfo({}, mq_table={queue: ProcessQueueInfo()}).to_json())
        broker.offsets[GROUP, queue] = 2
        return Reply(body=ConsumerRunningInfo({}).to_json())

    view = ConsumerConnection((Connection("java", "", "JAVA"),), {})
    broker.peer.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, Reply(body=view.to_json()))
    broker.peer.on(RequestCode.GET_CONSUMER_RUNNING_INFO, tell)
    async with member(broker.peer.address, ledger, clock=flowing):
        await eventually(lambda: ledger.finished, "it begins")
    assert broker.pulled_offsets(queue)[0] == 2
