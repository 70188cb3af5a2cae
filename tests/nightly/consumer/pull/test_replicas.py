"""A broker with a slave: the source of messages while the master is busy, dead, silent, or moved."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull_headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Peer, Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.pull.test_replicas import PULL, UPDATE, Replicated, cluster
from tests.consumer.scripted_broker import BROKER, ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["cluster"]

pytestmark = pytest.mark.usefixtures("hasty", "unpaced")


def silence(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a peer accept requests and answer none, like a stopped process."""
    monkeypatch.setattr("rmqd.client.remoting.remoting_client.SILENCE_SECONDS", 0.05)
    monkeypatch.setattr("rmqd.consumer.offsets.broker_store.OFFSET_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr("rmqd.consumer.health.watchdog.CHECK_INTERVAL_SECONDS", 0.05)
    for code in RequestCode:
        peer.on(code, None)


async def test_the_slave_is_pulled_while_the_master_is_silent(
    cluster: Replicated, seen: Seen, monkeypatch: pytest.MonkeyPatch, flowing: ManualClock
) -> None:
    """The master holds a pull and will never answer it. Once it is known to be silent, the slave is pulled instead."""
    broker, queue = cluster.broker, cluster.queue
    await broker.store(queue, b"0")
    async with cluster.member(seen, clock=flowing) as m:
        await seen.has(b"0")
        await cluster.pulled_at(cluster.master, 1)
        silence(cluster.master, monkeypatch)
        await cluster.pulled_at(cluster.slave)
        assert m.client.heartbeat.brokers_up[cluster.master.address] is False
        await broker.store(queue, b"1")
        await seen.has(b"0", b"1")


async def test_a_slave_gets_the_commits_while_the_master_is_down(cluster: Replicated, seen: Seen) -> None:
    """As in Java: with no master in the route the slave accepts offsets. The master returns with the offset on disk,
    and the next round of commits raises it, though nothing was consumed since.
    """
    broker, queue = cluster.broker, cluster.queue
    on_slave: list[int] = []

    def update_at_slave(command: RemotingCommand) -> Reply:
        if command.ext_fields["topic"] == TOPIC:
            on_slave.append(int(command.ext_fields["commitOffset"]))
        return Reply()

    cluster.slave.on(UPDATE, update_at_slave)
    await broker.store(queue, b"0", b"1")
    async with cluster.member(seen) as m:
        await seen.has(b"0", b"1")
        await broker.committed(GROUP, queue, 2)
        cluster.route({1: cluster.slave.address})
        await cluster.master.down()
        await broker.store(queue, b"2")
        await seen.has(b"0", b"1", b"2")
        await eventually(lambda: on_slave and on_slave[-1] == 3, "the slave has the offset")
        broker.offsets[GROUP, queue] = 1  # the flushed offset
        await cluster.master.listen()
        cluster.route({0: cluster.master.address, 1: cluster.slave.address})
        await broker.committed(GROUP, queue, 3)
        await broker.store(queue, b"3")
        await seen.has(b"0", b"1", b"2", b"3")
        assert m.topic().falls == {"operator": 0, "corrected": 0, "take_over": 0}
    assert min(cluster.pulls_at(cluster.slave), key=lambda pull: pull.queue_offset).queue_offset >= 2


async def test_a_slave_can_become_master_at_its_own_address(
    cluster: Replicated, seen: Seen, monkeypatch: pytest.MonkeyPatch, flowing: ManualClock
) -> None:
    """As with a controller: it has the offsets of ten seconds ago, and gets ours. The old master gets no requests."""
    monkeypatch.setattr("rmqd.consumer.rebalance.ownership.RENEW_INTERVAL_SECONDS", 600)
    broker, queue = cluster.broker, cluster.queue
    await broker.store(queue, b"0", b"1")
    async with cluster.member(seen, clock=flowing):
        await seen.has(b"0", b"1")
        await broker.committed(GROUP, queue, 2)
        await cluster.master.down()
        broker.offsets[GROUP, queue] = 0
        cluster.route({0: cluster.slave.address})
        await broker.committed(GROUP, queue, 2)
        await broker.store(queue, b"2")
        await broker.committed(GROUP, queue, 3)
        assert seen.bodies == [b"0", b"1", b"2"]
        await cluster.slave.received(RequestCode.LOCK_BATCH_MQ)  # the owner of the queue is known there, too


async def test_the_connection_to_a_replica_that_is_missing_in_the_route_stays_open(
    cluster: Replicated, seen: Seen
) -> None:
    """A restarted name server may know only the slave, while the master still counts us as a member."""
    async with cluster.member(seen) as m:
        await cluster.pulled_at(cluster.master)
        cluster.route({1: cluster.slave.address})
        await eventually(lambda: m.client.routes.master(BROKER) is None, "the route has come")
        assert m.client.remoting.connected(cluster.master.address) is not None
        cluster.route({0: cluster.slave.address})
        await eventually(lambda: m.client.remoting.connected(cluster.master.address) is None, "now it has moved")


async def test_a_new_connection_carries_a_heartbeat_before_a_pull(cluster: Replicated, seen: Seen) -> None:
    """A restarted broker knows no group, and would refuse a pull that is sent at once."""
    broker, queue = cluster.broker, cluster.queue
    await broker.store(queue, b"0")
    async with cluster.member(seen):
        await seen.has(b"0")
        cluster.slave.on(PULL, None)
        refused, known = 0, False

        async def slow_heartbeat(_: RemotingCommand) -> Reply:
            nonlocal known
            await asyncio.sleep(0.2)
            known = True
            return Reply()

        def gate(command: RemotingCommand) -> Reply | None:
            nonlocal refused
            if command.code == PULL and not known:
                refused += 1
                return Reply(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
            return None

        cluster.master.on(RequestCode.HEART_BEAT, slow_heartbeat)
        cluster.master.gate = gate
        pulled = len(cluster.pulls_at(cluster.master))
        cluster.master.cut()
        await broker.store(queue, b"1")
        await cluster.pulled_at(cluster.master, pulled)
        await seen.has(b"0", b"1")
        assert not refused


async def test_an_orderly_queue_continues_though_its_broker_lost_lock_and_offset(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, flowing: ManualClock
) -> None:
    """Both were in the broker's memory. Another member had the lock for a moment, and handled nothing new."""
    await broker.store(queue, b"0", b"1")
    async with member(broker.peer.address, seen, clock=flowing, consume_mode="orderly") as m:
        await seen.has(b"0", b"1")
        await broker.committed(GROUP, queue, 2)
        broker.offsets[GROUP, queue] = 1
        broker.locks[GROUP, queue] = "other@1"
        broker.peer.on(UPDATE, Reply(ResponseCode.SYSTEM_ERROR, "not yet"))
        broker.peer.cut()
        await eventually(lambda: (q := m.queue()) and q.state == "locked_out", "the lock is lost")
        broker.peer.on(UPDATE, broker.update)
        await broker.store(queue, b"2")
        del broker.locks[GROUP, queue]
        await seen.has(b"0", b"1", b"2")
        await broker.committed(GROUP, queue, 3)
        assert m.topic().falls == {"operator": 0, "corrected": 0, "take_over": 0}
    assert broker.commits_of(queue) == sorted(broker.commits_of(queue))


async def test_a_broker_that_moves_is_followed_at_once(cluster: Replicated, seen: Seen) -> None:
    """The old address still accepts connections, and holds a pull. Its connection is closed, and the new address gets a
    heartbeat first.
    """
    broker, queue = cluster.broker, cluster.queue
    await broker.store(queue, b"0")
    async with cluster.member(seen) as m:
        await seen.has(b"0")
        await cluster.pulled_at(cluster.master, 1)
        with capture_logs() as logs:
            cluster.route({0: cluster.slave.address})
            await cluster.pulled_at(cluster.slave)
        assert m.client.remoting.connected(cluster.master.address) is None
        codes = [request.code for request in cluster.slave.requests]
        assert codes.index(RequestCode.HEART_BEAT) < codes.index(PULL)
        assert not [entry for entry in logs if entry["event"] == "pull.failed"]
        assert [entry["gone"] for entry in logs if entry["event"] == "broker.moved"] == [cluster.master.address]
        await broker.store(queue, b"1")
        await seen.has(b"0", b"1")
        await broker.committed(GROUP, queue, 2)


async def test_a_slave_that_lags_behind_is_pulled_with_pauses(
    cluster: Replicated, seen: Seen, flowing: ManualClock
) -> None:
    """It answers at once and moves nothing. The missing messages come from the master, later."""
    broker, queue = cluster.broker, cluster.queue
    asked = 0

    def behind(command: RemotingCommand) -> Reply | None:
        nonlocal asked
        pull = PullMessageRequestHeader.from_ext_fields(command.ext_fields)
        if pull.topic != TOPIC:
            return None
        asked += 1
        fields = PullMessageResponseHeader(pull.queue_offset, 0, 1).ext_fields()
        return Reply(ResponseCode.PULL_RETRY_IMMEDIATELY, "OFFSET_OVERFLOW_BADLY", fields)

    cluster.slave.on(PULL, behind)
    await broker.store(queue, b"0", b"1")
    async with cluster.member(seen, clock=flowing) as m:
        await seen.has(b"0", b"1")
        await broker.committed(GROUP, queue, 2)
        await cluster.master.down()
        await eventually(lambda: asked, "the slave is asked")
        await flowing.sleep(0.7)  # there is no event to wait for
        assert asked < 10
        assert m.topic().falls == {"operator": 0, "corrected": 0, "take_over": 0}
        await cluster.master.listen()
        await broker.store(queue, b"2")
        await seen.has(b"0", b"1", b"2")
    assert {pull.queue_offset for pull in cluster.pulls_at(cluster.slave)} == {2}


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL])
async def test_a_busy_broker_is_pulled_less_and_less_often(
    cluster: Replicated, seen: Seen, monkeypatch: pytest.MonkeyPatch, code: ResponseCode, flowing: ManualClock
) -> None:
    """The failure is logged once."""
    monkeypatch.setattr("rmqd.consumer.pull.pull_request.FLOW_CONTROL_PAUSE_SECONDS", 0.05)
    broker, queue = cluster.broker, cluster.queue
    broker.answer_pull(queue, *[Reply(code, "[REJECTREQUEST]system busy, start flow control for a while")] * 100)
    await broker.store(queue, b"0")
    with capture_logs() as logs:
        async with cluster.member(seen, clock=flowing):
            await cluster.pulled_at(cluster.master)
            await flowing.sleep(1)  # there is no event to wait for
            assert len(cluster.pulls_at(cluster.master)) < 10  # about 20 without longer pauses
            broker.forget_answers(queue)
            await seen.has(b"0")
    assert len([entry for entry in logs if entry["event"] == "pull.failed"]) <= 1
