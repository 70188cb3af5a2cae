"""Pulls from a broker with a slave while the master is busy, dead, silent or replaced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.runtime.clock import Clock
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull_headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import PullSysFlag
from rmqd.wire.topics import retry_topic
from tests.client.peer import Peer, Reply, route_of, routes
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import BROKER, ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

PULL = RequestCode.PULL_MESSAGE
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET

pytestmark = pytest.mark.usefixtures("hasty", "unpaced")


class Replicated:
    """A name server, and a master and a slave with the same messages."""

    def __init__(self, broker: ScriptedBroker, name_server: Peer, slave: Peer) -> None:
        self.broker = broker
        broker.knows_groups = False
        self.name_server = name_server
        self.master, self.slave = broker.peer, slave
        self._routes: dict[str, TopicRouteData] = {}
        [self.queue] = broker.create_topic(TOPIC)
        [self.retries] = broker.create_topic(retry_topic(GROUP))
        broker.serve(slave, 1, with_master=True)
        name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes(self._routes))
        self.route({0: self.master.address, 1: slave.address})

    def route(self, replicas: dict[int, str]) -> None:
        """Set the route that the name server returns."""
        for topic in (TOPIC, retry_topic(GROUP)):
            self._routes[topic] = route_of({BROKER: replicas}, 1)

    def pulls_at(self, peer: Peer) -> list[PullMessageRequestHeader]:
        """The pulls of the topic's queue that a replica got."""
        headers = [PullMessageRequestHeader.from_ext_fields(pull.ext_fields) for pull in peer.got(PULL)]
        return [header for header in headers if header.topic == TOPIC]

    async def pulled_at(self, peer: Peer, more_than: int = 0) -> None:
        """Wait until a replica has received more than `more_than` pulls of the queue."""
        await eventually(lambda: len(self.pulls_at(peer)) > more_than, "it is pulled there")

    def member(
        self, seen: Seen, *, heartbeat_seconds: float = 30.0, clock: Clock | None = None
    ) -> contextlib.AbstractAsyncContextManager[Member]:
        return member(
            self.name_server.address,
            seen,
            clock=clock,
            heartbeat_seconds=heartbeat_seconds,
            poll_seconds=0.2,
            persist_consumer_offset_interval_seconds=0.05,
            consume_from_where="first_offset",
        )


@pytest.fixture
async def cluster(broker: ScriptedBroker) -> AsyncIterator[Replicated]:
    async with Peer() as name_server, Peer() as slave:
        yield Replicated(broker, name_server, slave)


def suggesting(reply: Reply, broker_id: int) -> Reply:
    """Return the reply with another suggested broker for the next pull."""
    fields = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)._replace(suggest_which_broker_id=broker_id)
    return replace(reply, ext_fields=fields.ext_fields())


async def test_pulls_go_to_the_replica_that_the_response_suggests(cluster: Replicated, seen: Seen) -> None:
    """To the slave and back. Offsets are committed only to the master, and pulls from the slave carry none."""
    broker, queue = cluster.broker, cluster.queue
    await broker.store(queue, b"0", b"1", b"2", b"3")
    broker.answer_pull(
        queue,
        suggesting(broker.found(queue, broker.records(queue, 0, 1), 1), 1),
        suggesting(broker.found(queue, broker.records(queue, 1, 2), 2), 1),
        suggesting(broker.found(queue, broker.records(queue, 2, 3), 3), 0),
    )
    async with cluster.member(seen) as m:
        await seen.has(b"0", b"1", b"2", b"3")
        await broker.committed(GROUP, queue, 4)
        await eventually(lambda: (q := m.queue()) and q.pulled_from == cluster.master.address, "the master is pulled")
    assert [pull.queue_offset for pull in cluster.pulls_at(cluster.master)][:2] == [0, 3]
    assert [pull.queue_offset for pull in cluster.pulls_at(cluster.slave)] == [1, 2]
    assert not any(pull.sys_flag & PullSysFlag.COMMIT_OFFSET for pull in cluster.pulls_at(cluster.slave))
    assert not cluster.slave.got(UPDATE)


async def test_pulls_use_the_slave_of_a_dead_master_until_it_returns(
    cluster: Replicated, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The route still names the master. Nothing is committed to the slave; the master gets the next commit."""
    monkeypatch.setattr("rmqd.consumer.health.watchdog.CHECK_INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr("rmqd.consumer.health.watchdog.BROKER_DOWN_SECONDS", 0.1)
    broker, queue = cluster.broker, cluster.queue
    await broker.store(queue, b"0")
    async with cluster.member(seen, heartbeat_seconds=0.3) as m:
        await seen.has(b"0")
        await broker.committed(GROUP, queue, 1)
        await cluster.master.down()
        await cluster.pulled_at(cluster.slave)
        await broker.store(queue, b"1")
        await seen.has(b"0", b"1")
        shown = m.queue()
        assert shown is not None
        assert (shown.pulled_from, shown.at_slave) == (cluster.slave.address, True)
        assert not cluster.slave.got(UPDATE)
        told = f"2 queues of this member are read from the slave {cluster.slave.address}"
        await eventually(lambda: told in str(m.consumer.snapshot().problems), "it is a problem of the group")
        [problem] = m.consumer.snapshot().problems
        assert problem.cause == "broker_unreachable"
        assert f"{cluster.master.address}) does not answer: Connection refused" in problem.evidence
        pulled = len(cluster.pulls_at(cluster.master))
        await cluster.master.listen()
        await broker.store(queue, b"2")
        await cluster.pulled_at(cluster.master, pulled)
        await broker.committed(GROUP, queue, 3)
        await eventually(lambda: not m.consumer.snapshot().problems, "the problem has ended")
        assert m.topic().falls == {"operator": 0, "corrected": 0, "take_over": 0}
    assert broker.commits_of(queue) == sorted(broker.commits_of(queue))
    assert seen.bodies == [b"0", b"1", b"2"]


async def test_after_go_away_the_broker_is_pulled_over_a_new_connection(cluster: Replicated, seen: Seen) -> None:
    """The pull is repeated at once, without an error in the log."""
    broker, queue = cluster.broker, cluster.queue
    broker.answer_pull(queue, Reply(ResponseCode.GO_AWAY, "please go away"))
    await broker.store(queue, b"0")
    with capture_logs() as logs:
        async with cluster.member(seen) as m:
            await seen.has(b"0")
            left = [entry for entry in logs if entry["event"] == "connection.left"]
            assert [entry["address"] for entry in left] == [cluster.master.address]
            assert m.queue() is not None
    assert not [entry for entry in logs if entry["event"] == "pull.failed"]


async def test_a_slave_that_becomes_master_of_an_idle_queue_is_reported_as_master(
    cluster: Replicated, seen: Seen
) -> None:
    """The slave keeps its address, and the queue stays idle."""

    async def hold(command: RemotingCommand) -> Reply:
        await asyncio.sleep(0.2)
        header = PullMessageRequestHeader.from_ext_fields(command.ext_fields)
        queue = MessageQueue(header.topic, BROKER, header.queue_id)
        return cluster.broker.nothing(queue, ResponseCode.PULL_NOT_FOUND, header.queue_offset)

    await cluster.broker.store(cluster.queue, b"0")
    cluster.slave.on(PULL, hold)
    async with cluster.member(seen) as m:
        await cluster.broker.committed(GROUP, cluster.queue, 1)
        await cluster.master.down()
        cluster.route({1: cluster.slave.address})
        await eventually(lambda: cluster.queue in m.consumer.context.idle_queues and m.queue(), "it is idle")
        assert (shown := m.queue()) is not None
        assert (shown.pulled_from, shown.at_slave) == (cluster.slave.address, True)
        cluster.route({0: cluster.slave.address})
        await eventually(lambda: (q := m.queue()) and not q.at_slave, "the slave is the master")
