"""A stalled queue on a real broker reports its cause, and continues when the cause ends.

The watchdog's intervals are shortened, except in the tests with a whole daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.client.api.admin_requests import reset_offset
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.health.causes import Problem
from rmqd.handler_api.batch import Batch
from rmqd.wire.command import RemotingCommand
from tests.cli.command import rmqd
from tests.conformance import behaviour
from tests.consumer.members import Member, member
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.nightly.integration.fault_proxy import FaultProxy
from tests.rocketmq import RealCluster, offsets, release, rpc
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually, wait_until

pytestmark = pytest.mark.rocketmq

UPDATE_CONSUMER_OFFSET = 15
LOCK_BATCH_MQ = 41
UNLOCK_BATCH_MQ = 42
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
PERSIST_SECONDS = 0.2
WITHIN_SECONDS = 60.0


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report stalls after one second instead of 20."""
    for name, seconds in {"CHECK_INTERVAL": 0.1, "STALL": 1.0}.items():
        monkeypatch.setattr(f"rmqd.consumer.health.watchdog.{name}_SECONDS", seconds)
    monkeypatch.setattr("rmqd.consumer.assigned.stall_facts.SLOW_CALL_SECONDS", 0.8)


def send(cluster: RealCluster, topic: str, count: int, queues: int = 1) -> None:
    """Store messages."""
    with Producer(cluster.broker.address, topic, queues) as producer:
        for number in range(count):
            producer.send(key=f"m{number}")


def set_group(cluster: RealCluster, group: str, **settings: Any) -> None:
    """Set the group's options, as `mqadmin updateSubGroup` does."""
    body = json.dumps({"groupName": group, "brokerId": 0, "retryQueueNums": 1, "retryMaxTimes": 16, **settings})
    rpc.call(cluster.broker.address, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body.encode())


def stall(m: Member) -> Problem | None:
    queue = m.queue()
    return None if queue is None else queue.stall


async def stands_still(m: Member, cause: str, state: str) -> Problem:
    """Wait until the queue is stalled with this cause and state, which may last only a moment."""

    def shown() -> Problem | None:
        problem, queue = stall(m), m.queue()
        return problem if problem and problem.cause == cause and queue and queue.state == state else None

    return await eventually(shown, f"the queue stands still for {cause}, {state}", WITHIN_SECONDS)


@contextlib.asynccontextmanager
async def consuming(cluster: RealCluster, group: str, topic: str, handle: Any, **options: Any) -> AsyncIterator[Member]:
    """A member that commits and reads routes often, and starts at the first offset."""
    quick = {"persist_consumer_offset_interval_seconds": PERSIST_SECONDS, "poll_seconds": 0.5}
    options = {**quick, "consume_from_where": "first_offset", **options}
    async with member(cluster.nameserver, handle, group=group, subscriptions=[topic], **options) as m:
        yield m


async def goes_on(cluster: RealCluster, group: str, topic: str, m: Member) -> None:
    """Wait until all messages are handled and committed, and no queue is stalled."""
    await eventually(lambda: offsets.lag(cluster, group, topic) == 0, "the lag is 0", WITHIN_SECONDS)
    await eventually(lambda: stall(m) is None, "nothing stands still", WITHIN_SECONDS)


@pytest.fixture
def one_queue(rocketmq: RealCluster, group: str) -> str:
    """A topic with one queue."""
    return rocketmq.create_topic(f"{group}_topic", 1)


@pytest.mark.usefixtures("soon")
async def test_a_hung_handler_stalls_the_queue(rocketmq: RealCluster, group: str, one_queue: str) -> None:
    """The evidence names the first unfinished message."""
    release = asyncio.Event()

    async def hang(batch: Batch) -> None:
        await release.wait()

    send(rocketmq, one_queue, 3000)
    async with consuming(rocketmq, group, one_queue, hang, concurrency=2) as m:
        problem = await stands_still(m, "slow_handler", "flow_controlled")
        assert "at offset 0" in problem.evidence
        release.set()
        await goes_on(rocketmq, group, one_queue, m)


@pytest.mark.usefixtures("soon")
async def test_a_paused_queue_is_reported_with_its_lag(rocketmq: RealCluster, group: str, one_queue: str) -> None:
    seen = Seen()
    async with consuming(rocketmq, group, one_queue, seen) as m:
        await eventually(lambda: m.queue(), "it has the queue")
        m.consumer.pause()
        send(rocketmq, one_queue, 10)
        await stands_still(m, "paused", "paused")
        await eventually(lambda: (q := m.queue()) and q.lag == 10, "the lag is known")
        m.consumer.resume()
        await goes_on(rocketmq, group, one_queue, m)


@pytest.mark.usefixtures("soon")
async def test_an_unreadable_topic_stalls_the_queue(rocketmq: RealCluster, group: str, one_queue: str) -> None:
    """As after `mqadmin updateTopic -p 2`."""
    async with consuming(rocketmq, group, one_queue, Seen()) as m:
        await eventually(lambda: m.queue(), "it has the queue")
        rocketmq.create_topic(one_queue, 1, permission=2)
        send(rocketmq, one_queue, 10)
        await stands_still(m, "no_permission", "stuck")
        rocketmq.create_topic(one_queue, 1, permission=6)
        await goes_on(rocketmq, group, one_queue, m)


@pytest.mark.usefixtures("soon")
async def test_an_unreadable_broker_stalls_the_queue(rocketmq_faulty: RealCluster, group: str) -> None:
    """With brokerPermission=2."""
    topic = rocketmq_faulty.create_topic(f"{group}_topic", 1)
    async with consuming(rocketmq_faulty, group, topic, Seen()) as m:
        await eventually(lambda: m.queue(), "it has the queue")
        rocketmq_faulty.set_broker(brokerPermission=2)
        try:
            send(rocketmq_faulty, topic, 10)
            problem = await stands_still(m, "no_permission", "stuck")
            assert "broker" in problem.evidence
        finally:
            rocketmq_faulty.set_broker(brokerPermission=6)
        await goes_on(rocketmq_faulty, group, topic, m)


@pytest.mark.usefixtures("soon")
async def test_a_disabled_group_stalls_the_queue(rocketmq: RealCluster, group: str, one_queue: str) -> None:
    """As after `mqadmin updateSubGroup -s false`."""
    async with consuming(rocketmq, group, one_queue, Seen()) as m:
        await eventually(lambda: m.queue(), "it has the queue")
        set_group(rocketmq, group, consumeEnable=False)
        send(rocketmq, one_queue, 10)
        await stands_still(m, "consumption_disabled", "stuck")
        set_group(rocketmq, group, consumeEnable=True)
        await goes_on(rocketmq, group, one_queue, m)


@pytest.mark.skipif(release.is_4(), reason="a RocketMQ 4 keeps no topic's order, and takes every retry that is sent")
@pytest.mark.usefixtures("soon")
async def test_a_retry_that_the_broker_rejects_stalls_the_queue(rocketmq_faulty: RealCluster, group: str) -> None:
    """The broker is read-only: a failed message can neither be sent back nor be sent as a new message.

    A broker without write permission rejects new messages only for ordered topics (`AbstractSendMessageProcessor`).
    """
    topic = rocketmq_faulty.create_topic(f"{group}_topic", 1)
    ordered = {"topic": f"%RETRY%{group}", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1}
    ordered |= {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "true"}
    rpc.call(rocketmq_faulty.broker.address, rpc.UPDATE_AND_CREATE_TOPIC, ordered)
    seen = Seen()

    async def fail_first(batch: Batch) -> None:
        await seen(batch)
        if batch[0].keys == "m0" and batch[0].message_queue.topic == topic:
            raise ValueError("it fails until a broker takes it back")

    send(rocketmq_faulty, topic, 10)
    rocketmq_faulty.set_broker(brokerPermission=4)
    try:
        async with consuming(rocketmq_faulty, group, topic, fail_first, delay_level_when_next_consume=1) as m:
            problem = await stands_still(m, "retry_refused", "retrying")
            assert "at offset 0" in problem.evidence
            rocketmq_faulty.set_broker(brokerPermission=6)
            await goes_on(rocketmq_faulty, group, topic, m)
            await eventually(
                lambda: seen.of("m0")[-1].topic != topic or seen.of("m0")[-1].reconsume_times > 0, "it is retried"
            )
    finally:
        rocketmq_faulty.set_broker(brokerPermission=6)


class NothingTakenBack(RemotingClient):
    """A client whose brokers reject both send-back and sends."""

    async def invoke(
        self, address: str, code: int, ext_fields: dict[str, str], body: bytes = b"", timeout_seconds: float = 3.0
    ) -> RemotingCommand:
        if code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
            return RemotingCommand(ResponseCode.MESSAGE_ILLEGAL, remark="the body is empty")
        return await super().invoke(address, code, ext_fields, body, timeout_seconds)


@pytest.mark.skipif(release.is_4(), reason="a RocketMQ 4 resets a group with members by time only")
@pytest.mark.usefixtures("soon")
async def test_an_operator_skips_a_message_whose_retry_brokers_reject(
    rocketmq: RealCluster, group: str, one_queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's problem names the command. Until it runs, flow control limits the messages behind this one."""
    monkeypatch.setattr("rmqd.consumer.handling.settlement.LOCAL_RETRY_SECONDS", 0.2)
    seen = Seen()

    async def fail_first(batch: Batch) -> None:
        await seen(batch)
        if batch[0].keys == "m0":
            raise ValueError("never")

    send(rocketmq, one_queue, 300)
    options = {"consume_concurrently_max_span": 64, "remoting": NothingTakenBack()}
    async with consuming(rocketmq, group, one_queue, fail_first, **options) as m:
        await stands_still(m, "retry_refused", "flow_controlled")
        refused = next(one for one in m.consumer.snapshot().problems if one.cause == "retry_refused")
        assert f"{one_queue}@{rocketmq.broker.name}:0 offset 0" in refused.evidence
        assert "the body is empty" in refused.evidence
        assert seen.of("m0")[-1].reconsume_times > 0
        assert len(set(seen.keys)) < 200
        command = refused.next.split("`")[1].replace("'", "").split()[1:]
        ended = await asyncio.to_thread(
            rmqd, *command, "--yes", "-n", rocketmq.nameserver, "--set", f"state_dir={tmp_path}"
        )
        assert ended.code == 0, ended
        await goes_on(rocketmq, group, one_queue, m)
    assert len(set(seen.keys)) == 300


@pytest.mark.usefixtures("soon")
async def test_an_illegal_offset_stalls_the_queue(rocketmq: RealCluster, group: str, one_queue: str) -> None:
    """With `on_offset_illegal: stop` only an operator's reset ends the stall, because messages could be skipped."""
    seen = Seen()
    set_group(rocketmq, group)
    send(rocketmq, one_queue, 1)
    fields: dict[str, object] = {"consumerGroup": group, "topic": one_queue, "queueId": 0, "commitOffset": 5}
    rpc.call(rocketmq.broker.address, UPDATE_CONSUMER_OFFSET, fields)
    async with consuming(rocketmq, group, one_queue, seen, on_offset_illegal="stop") as m:
        problem = await stands_still(m, "offset_illegal", "stuck")
        assert "offset 5 is above the queue's end, 1" in problem.evidence
        send(rocketmq, one_queue, 9)
        await eventually(
            lambda: (p := stall(m)) and "from 1 on may not have been handled" in p.evidence, "it stays stuck"
        )
        remoting = RemotingClient()
        await reset_offset(remoting, rocketmq.broker.address, group, one_queue, 0)
        await remoting.close()
        await goes_on(rocketmq, group, one_queue, m)
    assert [attempt.offset for attempt in seen.attempts] == list(range(10))


@pytest.mark.usefixtures("soon")
async def test_a_poison_message_stalls_an_orderly_queue(rocketmq: RealCluster, group: str, one_queue: str) -> None:
    """Later messages wait, and are handled in order once it succeeds."""
    seen, mended = Seen(), asyncio.Event()

    async def fail_at_third(batch: Batch) -> None:
        if batch[0].keys == "m2" and not mended.is_set():
            raise ValueError("not yet")
        await seen(batch)

    send(rocketmq, one_queue, 10)
    options = {"consume_mode": "orderly", "suspend_current_queue_time_seconds": 0.05}
    async with consuming(rocketmq, group, one_queue, fail_at_third, **options) as m:
        problem = await stands_still(m, "poison_message", "retrying")
        assert "at offset 2 " in problem.evidence
        mended.set()
        await goes_on(rocketmq, group, one_queue, m)
    assert seen.keys == [f"m{number}" for number in range(10)]


@pytest.mark.usefixtures("soon")
async def test_another_clients_lock_stalls_the_queue(rocketmq: RealCluster, group: str, one_queue: str) -> None:
    """An orderly queue is consumed once the lock is free."""
    queue = {"topic": one_queue, "brokerName": rocketmq.broker.spec.broker_name, "queueId": 0}
    body = json.dumps({"consumerGroup": group, "clientId": "10.0.0.9@other", "mqSet": [queue]}).encode()
    rpc.call(rocketmq.broker.address, LOCK_BATCH_MQ, body=body)
    send(rocketmq, one_queue, 10)
    async with consuming(rocketmq, group, one_queue, Seen(), consume_mode="orderly") as m:
        await stands_still(m, "held_lock", "locked_out")
        rpc.call(rocketmq.broker.address, UNLOCK_BATCH_MQ, body=body)
        await goes_on(rocketmq, group, one_queue, m)


@pytest.mark.usefixtures("soon")
async def test_a_rate_limit_is_reported_as_the_cause(rocketmq: RealCluster, group: str, one_queue: str) -> None:
    """Several seconds between two pulls are not reported as a fault."""
    send(rocketmq, one_queue, 8)
    async with consuming(rocketmq, group, one_queue, Seen(), pull_rate_limit=1, pull_batch_size=8) as m:
        await eventually(lambda: m.queue(), "it has the queue")
        send(rocketmq, one_queue, 2)
        m.consumer.context.rate_limit.charge(5)  # as after a pull that brought more than the limit
        await stands_still(m, "rate_limit", "pulling")
        await goes_on(rocketmq, group, one_queue, m)


@pytest.mark.usefixtures("soon")
async def test_a_deleted_topic_stalls_the_queue(
    rocketmq: RealCluster, group: str, one_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue continues once the topic is recreated."""
    # a pull that the broker holds reports the deletion when it returns
    monkeypatch.setattr("rmqd.consumer.pull.pull_loop.BROKER_HOLD_MS", 1000)
    async with consuming(rocketmq, group, one_queue, Seen()) as m:
        await eventually(lambda: m.queue(), "it has the queue")
        await asyncio.to_thread(rocketmq.admin, "deleteTopic", "-c", "DefaultCluster", "-t", one_queue)
        await stands_still(m, "topic_missing", "stuck")
        rocketmq.create_topic(one_queue, 1)
        send(rocketmq, one_queue, 10)
        await goes_on(rocketmq, group, one_queue, m)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("way", ["kill", "pause"])
async def test_an_unreachable_broker_stalls_the_queue(rocketmq_faulty: RealCluster, group: str, way: str) -> None:
    """The broker is killed, or hangs with open connections."""
    topic, seen = rocketmq_faulty.create_topic(f"{group}_topic", 1), Seen()
    send(rocketmq_faulty, topic, 5)
    async with consuming(rocketmq_faulty, group, topic, seen) as m:
        await eventually(lambda: len(seen.keys) == 5, "it consumes")
        await eventually(lambda: offsets.lag(rocketmq_faulty, group, topic) == 0, "it has committed")
        begun = time.monotonic()
        (rocketmq_faulty.kill if way == "kill" else rocketmq_faulty.pause)("broker")
        await stands_still(m, "broker_unreachable", "stuck")
        assert time.monotonic() - begun < WITHIN_SECONDS
        if way == "kill":
            await asyncio.to_thread(rocketmq_faulty.restart, "broker")
        else:
            rocketmq_faulty.resume("broker")
        send(rocketmq_faulty, topic, 5)
        await goes_on(rocketmq_faulty, group, topic, m)


@pytest.mark.usefixtures("soon")
async def test_a_lost_pull_response_stalls_the_queue(
    rocketmq: RealCluster, group: str, one_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays open, and the pull is sent again from the same offset."""
    monkeypatch.setattr("rmqd.consumer.pull.assigned_queue.PULL_UNANSWERED_SECONDS", 2.0)
    monkeypatch.setattr("rmqd.consumer.health.watchdog.LOOP_EXPIRY_SECONDS", 4.0)
    broker, seen = rocketmq.broker.address, Seen()
    with FaultProxy(broker) as line, FaultProxy(rocketmq.nameserver, {broker: line.address}) as names:
        async with member(names.address, seen, group=group, subscriptions=[one_queue]) as m:
            await eventually(lambda: m.queue(), "it has the queue")
            with Producer(broker, one_queue, 1) as producer:
                producer.send(key="first")
                await eventually(lambda: seen.keys == ["first"], "it consumes")
                line.lose_next_frame(above_bytes=1000)
                producer.send(b"x" * 1000, key="lost")
                await eventually(lambda: not line.armed, "the response is lost")
            problem = await stands_still(m, "stalled_queue", "stuck")
            assert "no response" in problem.evidence
            await eventually(lambda: seen.keys == ["first", "lost"], "the message is pulled again")


# --- members that disagree


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check consistency every second instead of every minute."""
    monkeypatch.setattr("rmqd.consumer.health.consistency.CHECK_INTERVAL_SECONDS", 1.0)
    monkeypatch.setattr("rmqd.consumer.health.consistency.SECOND_CHECK_AFTER_SECONDS", 0.5)


def causes(m: Member) -> set[str]:
    return {problem.cause for problem in m.consumer.snapshot().problems}


@behaviour(
    "filters",
    "Members of a group whose subscriptions differ",
    java="the broker keeps the last subscription; no member is notified",
    rmqd="each member reports it, with both expressions, at the start and each minute",
    checked="two members: the broker's view, and the members' reports",
)
@pytest.mark.usefixtures("looks")
async def test_different_subscriptions_are_reported_by_both_members(rocketmq: RealCluster, group: str) -> None:
    """The broker knows only the later subscription, so the members query each other. It is over when one leaves."""
    topics = [rocketmq.create_topic(fresh_name(name, "topic"), 2) for name in ("one", "two")]
    async with member(rocketmq.nameserver, Seen(), group=group, subscriptions={topics[0]: "a"}) as first:
        await eventually(lambda: len(first.owned()) == 2, "the first has its queues")
        async with member(
            rocketmq.nameserver, Seen(), group=group, subscriptions={topics[0]: "a || b", topics[1]: "*"}
        ) as second:
            await eventually(lambda: causes(first) == causes(second) == {"subscription_mismatch"}, "both tell it", 40)
            told = " ".join(problem.evidence for problem in second.consumer.snapshot().problems)
            assert f"subscribe to {topics[0]} by TAG 'a', this one by TAG 'a || b'" in told
            assert f"do not subscribe to {topics[1]}, this one does" in told
            assert first.client.client_id in told
            await second.stop()
        await eventually(lambda: not causes(first), "it is over", 40)


@behaviour(
    "rebalance",
    "Two members with one client id",
    java="share one assignment: queues are consumed twice, or have no owner",
    rmqd="ids are unique; if the configuration makes them equal, both members report it",
    checked="two members configured with the same id",
)
@pytest.mark.usefixtures("looks")
async def test_equal_client_ids_are_reported_by_both_members(
    rocketmq: RealCluster, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two containers with one address and one process id."""
    monkeypatch.setattr("rmqd.client.instance.make_client_id", lambda *_: "10.0.0.1@7")
    async with member(rocketmq.nameserver, Seen(), group=group, subscriptions=[topic]) as first:
        await eventually(lambda: len(first.owned()) == 8, "the first has its queues")
        async with member(rocketmq.nameserver, Seen(), group=group, subscriptions=[topic]) as second:
            await eventually(lambda: causes(first) == causes(second) == {"client_id_conflict"}, "both tell it", 40)
            [problem] = first.consumer.snapshot().problems
            assert "10.0.0.1@7 is also connected from 127.0.0.1:" in problem.evidence
            await second.stop()
        await eventually(lambda: not causes(first), "it is over", 40)


# --- a daemon with the default intervals


@pytest.fixture
def stalled_daemon(rocketmq: RealCluster, tmp_path: Path) -> Iterator[tuple[RmqdProcess, dict[str, str]]]:
    """One daemon with groups that stall for different causes: group -> topic."""
    topics = {
        name: rocketmq.create_topic(fresh_name(name, "topic"), 2) for name in ("paused", "slow", "closed", "disabled")
    }
    topics["missing"] = fresh_name("missing", "topic")
    groups = {
        name: ledger_group(
            topic,
            tmp_path / name,
            name,
            handler_options={"seconds": 45 if name == "slow" else 0},
            concurrency=2,
            persist_consumer_offset_interval="1s",
            consume_from_where="first_offset",
        )
        for name, topic in topics.items()
    }
    named = {f"{name}_{fresh_name('g', 'group')}": config for name, config in groups.items()}
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, named) as rmqd:
        yield rmqd, {group: topics[group.split("_", 1)[0]] for group in named}


standing_still = behaviour(
    "queues",
    ("A stalled queue is reported with its cause within a minute, and resumes automatically when the cause ends"),
    java="only its lag shows it; a queue without a pull for 120 s is acquired again",
    rmqd="in log, status and metrics; a lost pull is sent again",
    checked="a pause, a slow handler, a closed topic, a disabled group, a missing topic, and a broker under SIGSTOP",
    long=True,
)


@standing_still
@pytest.mark.slow
def test_a_hung_broker_is_reported_within_a_minute(rocketmq_faulty: RealCluster, tmp_path: Path) -> None:
    """Its connections stay open without responses. The pulls that it held continue when it resumes."""
    topic, group = rocketmq_faulty.create_topic(fresh_name("hangs", "topic"), 4), fresh_name("hangs", "group")
    config = ledger_group(topic, tmp_path / "ledger", "a", persist_consumer_offset_interval="1s")
    with RmqdProcess(tmp_path / "rmqd", rocketmq_faulty.nameserver, {group: config}) as rmqd:
        rmqd.wait_ready()
        send(rocketmq_faulty, topic, 8, 4)
        wait_until(lambda: offsets.lag(rocketmq_faulty, group, topic) == 0, "it consumes")
        begun = time.monotonic()
        rocketmq_faulty.pause("broker")
        stalled = wait_until(lambda: rmqd.events("queue.stalled"), "it is told", WITHIN_SECONDS)
        assert time.monotonic() - begun < WITHIN_SECONDS
        assert {entry["cause"] for entry in stalled} == {"broker_unreachable"}
        assert {queue["state"] for queue in rmqd.queues(group) if not queue["is_retry"]} == {"stuck"}
        rocketmq_faulty.resume("broker")
        send(rocketmq_faulty, topic, 8, 4)
        wait_until(lambda: offsets.lag(rocketmq_faulty, group, topic) == 0, "it goes on", WITHIN_SECONDS)
        wait_until(lambda: rmqd.metric("rmqd_stalled_queues", group=group) == 0, "no queue is stalled")
        ended = {entry["queue"] for entry in rmqd.events("queue.recovered")}
        assert len([queue for queue in ended if queue.startswith(f"{topic}@")]) == 4


@standing_still
@pytest.mark.slow
def test_every_cause_is_reported_within_a_minute(
    rocketmq: RealCluster, stalled_daemon: tuple[RmqdProcess, dict[str, str]]
) -> None:
    """In the log, in the status and as a metric. The groups continue when the causes end."""
    rmqd, topics = stalled_daemon
    expected = {"paused": "paused", "slow": "slow_handler", "closed": "no_permission"}
    expected |= {"disabled": "consumption_disabled", "missing": "topic_missing"}
    by_name = {group.split("_", 1)[0]: group for group in topics}
    wait_until(lambda: rmqd.get("/livez")[0] == 200, "the daemon is alive")
    owned = [by_name[name] for name in expected.keys() - {"missing"}]
    wait_until(lambda: all(len(rmqd.queues(group)) >= 2 for group in owned), "all have their queues")
    rmqd.post(f"/api/v1/groups/{by_name['paused']}/pause")
    rocketmq.create_topic(topics[by_name["closed"]], 2, permission=2)
    set_group(rocketmq, by_name["disabled"], consumeEnable=False)
    for name in expected.keys() - {"missing"}:
        send(rocketmq, topics[by_name[name]], 8, 2)
    begun = time.monotonic()

    def told(event: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {name: set() for name in expected}
        for entry in rmqd.events(event):
            if entry["group"] in topics:
                found[entry["group"].split("_", 1)[0]].add(entry["cause"])
        return found

    wait_until(
        lambda: all(
            expected[name] in causes | told("group.problem")[name] for name, causes in told("queue.stalled").items()
        ),
        "every cause is told",
        60,
    )
    assert time.monotonic() - begun < WITHIN_SECONDS
    stalls = {
        group["name"].split("_", 1)[0]: {queue["stall"]["cause"] for queue in group["queues"] if queue["stall"]}
        | {problem["cause"] for problem in group["problems"]}
        for group in rmqd.status()["groups"]
    }
    assert all(expected[name] in causes for name, causes in stalls.items()), stalls
    for name in ("paused", "slow", "closed", "disabled"):
        assert rmqd.metric("rmqd_stalled_queues", group=by_name[name], cause=expected[name]) >= 1
    assert rmqd.metric("rmqd_group_problems", group=by_name["missing"], cause="topic_missing") == 1

    rmqd.post(f"/api/v1/groups/{by_name['paused']}/resume")
    rocketmq.create_topic(topics[by_name["closed"]], 2, permission=6)
    set_group(rocketmq, by_name["disabled"], consumeEnable=True)
    rocketmq.create_topic(topics[by_name["missing"]], 2)
    send(rocketmq, topics[by_name["missing"]], 8, 2)
    mended = [by_name[name] for name in ("paused", "closed", "disabled", "missing")]
    wait_until(
        lambda: all(offsets.lag(rocketmq, group, topics[group]) == 0 for group in mended), "all others go on", 60
    )
    # if the group's settings were first checked after the change, the next check is a minute later
    wait_until(lambda: rmqd.get("/readyz")[0] == 200, "it is ready", 90)
