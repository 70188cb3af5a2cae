"""`rmqd diagnose` on a real broker: each produced cause is the first finding; a healthy group has no findings.

The groups of most causes run on one broker, and are diagnosed in parallel.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.consumer.allocate import AllocateStrategy
from rmqd.handler_api.batch import Batch
from rmqd.operate.queries.diagnosis_queries import Diagnosis, diagnose
from rmqd.runtime.clock import SystemClock
from tests.cli.command import Ended, rmqd
from tests.consumer.members import member
from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster, offsets, release, rpc
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.peers import JavaPeer, start_behaving
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually, wait_until

pytestmark = pytest.mark.rocketmq

LOCK_BATCH_MQ = 41
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
WITHIN_SECONDS = 90.0
MAX_AT_ONCE = 8
"""On a machine that is too busy, heartbeats time out, and brokers report wrong members for two minutes."""
MANY = 250
"""From this number on, messages are sent as batches, which brokers store one by one."""


@dataclass
class Stage:
    """A group that produces one cause, and its topics."""

    cluster: RealCluster
    directory: Path
    group: str

    def topic(self, queues: int = 2, name: str = "topic") -> str:
        return self.cluster.create_topic(f"{self.group}_{name}", queues)

    def send(self, topic: str, count: int, queues: int = 2) -> None:
        with Producer(self.cluster.broker.address, topic, queues) as producer:
            if count < MANY:
                for number in range(count):
                    producer.send(key=f"m{number}")
            for begin in range(0, count, MANY) if count >= MANY else ():
                producer.send_batch([f"m{number}" for number in range(begin, min(begin + MANY, count))])

    def member(self, handle: Any, *topics: str, **options: Any) -> Any:
        given = {"subscriptions": list(topics), "consume_from_where": "first_offset", **options}
        return member(self.cluster.nameserver, handle, group=self.group, **given)

    def lock(self, topic: str) -> None:
        """Lock queue 0 of the topic for another client, for a minute."""
        queue = {"topic": topic, "brokerName": self.cluster.broker.spec.broker_name, "queueId": 0}
        body = json.dumps({"consumerGroup": self.group, "clientId": "10.0.0.9@other", "mqSet": [queue]}).encode()
        rpc.call(self.cluster.broker.address, LOCK_BATCH_MQ, body=body)

    def set_group(self, **settings: Any) -> None:
        body = {"groupName": self.group, "brokerId": 0, "retryQueueNums": 1, "retryMaxTimes": 16, **settings}
        rpc.call(self.cluster.broker.address, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(body).encode())


Scene = Callable[[Stage], contextlib.AbstractAsyncContextManager[str]]
"""Produces a cause as long as the block lasts; yields text that the evidence must contain."""
SCENES: dict[str, tuple[str, Scene]] = {}
"""The cause and the scene that produces it, by the name of the scene."""


def scene(cause: str) -> Callable[[Callable[[Stage], AsyncIterator[str]]], Scene]:
    def keep(make: Callable[[Stage], AsyncIterator[str]]) -> Scene:
        produce = contextlib.asynccontextmanager(make)
        SCENES[make.__name__] = cause, produce
        return produce

    return keep


async def fail(batch: Batch) -> None:
    raise ValueError("as told")


def fail_at(key: str) -> Any:
    async def handle(batch: Batch) -> None:
        if batch[0].keys == key:
            await fail(batch)

    return handle


async def hang(batch: Batch) -> None:
    await asyncio.Event().wait()


# --- the scenes


@scene("no_members")
async def nobody_consumes(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic()
    stage.set_group()
    stage.send(topic, 7)
    for queue in offsets.queues(stage.cluster, topic):
        offsets.commit(stage.cluster, stage.group, topic, queue, 0)
    yield "7 messages wait"


@scene("topic_missing")
async def a_topic_that_was_never_made(stage: Stage) -> AsyncIterator[str]:
    missing = f"{stage.group}_missing"
    async with stage.member(Seen(), stage.topic(), missing):
        yield f"no name server knows topic {missing}"


@scene("subscription_mismatch")
async def members_that_want_other_tags(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic()
    async with stage.member(Seen(), topic), stage.member(Seen(), subscriptions={topic: "paid"}):
        yield f"{topic} by TAG 'paid'"


@scene("orphaned_queue")
async def a_queue_that_the_configuration_leaves_out(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic(4)
    strategy = AllocateStrategy(
        "by_config", lambda group, current, queues, members: [q for q in queues if q.queue_id != 3]
    )
    stage.send(topic, 8, 4)
    async with stage.member(Seen(), topic, allocate_strategy=strategy):
        yield f"{topic} on {stage.cluster.broker.spec.broker_name}, queue 3, where 2 messages wait"


@scene("failing_handler")
async def an_rmqd_handler_that_raises(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic()
    stage.send(topic, 10)
    async with stage.member(fail, topic) as m:
        yield m.client.client_id


@scene("slow_handler")
async def an_rmqd_handler_that_hangs(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic()
    stage.send(topic, 50)
    async with stage.member(hang, topic):
        yield "none of them finished"


@scene("no_permission")
async def a_topic_that_may_not_be_read(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic()
    async with stage.member(Seen(), topic) as m:
        await eventually(lambda: m.queue(), "it has its queues")
        stage.cluster.create_topic(topic, 2, permission=2)
        yield f"topic {topic} is not readable"


@scene("consumption_disabled")
async def a_group_that_may_not_consume(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic()
    stage.set_group(consumeEnable=False)
    stage.send(topic, 4)
    async with stage.member(Seen(), topic):
        yield "consumeEnable is false"


@scene("client_id_conflict")
async def two_members_with_one_client_id(stage: Stage) -> AsyncIterator[str]:
    topic, name = stage.topic(), fresh_name("same", "name")
    async with stage.member(Seen(), topic, instance_name=name), stage.member(Seen(), topic, instance_name=name):
        yield f"@{name} is connected 2 times"


@scene("mode_mismatch")
async def one_member_in_order_and_one_not(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic()
    async with stage.member(Seen(), topic), stage.member(Seen(), topic, consume_mode="orderly"):
        yield "consume "


@scene("mode_mismatch")
async def a_member_that_would_pop(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic()
    async with stage.member(Seen(), topic, consume_mode="pop") as m:
        yield f"makes the group pull {topic}, but {m.client.client_id} is configured to pop"


@scene("offset_illegal")
async def an_offset_above_the_queue_s_end(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic(1)
    stage.set_group()
    stage.send(topic, 3, 1)
    (queue,) = offsets.queues(stage.cluster, topic)
    offsets.commit(stage.cluster, stage.group, topic, queue, 50)
    async with stage.member(Seen(), topic, on_offset_illegal="stop"):
        yield "(queue 0: at 50, outside 0 to 3)"


@scene("held_lock")
async def a_lock_that_somebody_else_has(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic(1)
    stage.lock(topic)
    stage.send(topic, 4, 1)
    async with stage.member(Seen(), topic, consume_mode="orderly") as m:
        yield f"{m.client.client_id} should consume {topic}"


@scene("poison_message")
async def an_orderly_queue_whose_third_message_fails(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic(1)
    stage.send(topic, 10, 1)
    options = {"consume_mode": "orderly", "suspend_current_queue_time_seconds": 0.2}
    async with stage.member(fail_at("m2"), topic, **options):
        yield "[m2] at offset 2"


@scene("poison_message")
async def a_message_that_comes_back_again_and_again(stage: Stage) -> AsyncIterator[str]:
    """The group's other messages are handled."""
    topic = stage.topic(1)
    stage.send(topic, 10, 1)
    endless = {"delay_level_when_next_consume": 1, "max_reconsume_times": 1000}  # 16 retries may end too soon
    async with stage.member(fail_at("m2"), topic, **endless, poll_seconds=1):
        yield "[m2] (sent back "


@scene("flow_control")
async def a_rate_limit_below_what_waits(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic(1)
    stage.send(topic, 4000, 1)
    async with stage.member(Seen(), topic, pull_rate_limit=8, pull_batch_size=8):
        yield "pull_rate_limit=8"


@scene("flow_control")
async def a_threshold_that_leaves_threads_idle(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic(1)
    stage.send(topic, 4000, 1)
    options = {"pull_threshold_for_queue": 2, "pull_batch_size": 1}
    async with stage.member(lambda batch: asyncio.sleep(1), topic, **options):
        yield "pullThresholdForQueue=2"


@scene("stalled_queue")
async def a_group_that_an_operator_has_paused(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic()
    async with stage.member(Seen(), topic) as m:
        await eventually(lambda: m.queue(), "it has its queues")
        m.consumer.pause()
        stage.send(topic, 5)
        yield f"an operator has paused {m.client.client_id} ("


@scene("idle_member")
async def more_members_than_queues(stage: Stage) -> AsyncIterator[str]:
    topic = stage.topic(1)
    async with stage.member(Seen(), topic), stage.member(Seen(), topic):
        yield "has no queue: 2 members share 1 queue"


# --- Java groups, all in one JVM; BehavingMembers defines the values of `way`


@dataclass(frozen=True)
class JavaScene:
    """A cause that a Java member produces by its `way`, and how many messages wait at its start.

    A suspended member gets its messages later, because it acquires queues only before it is suspended.
    """

    cause: str
    way: str
    messages: int = 0
    tags: str = "*"


JAVA_SCENES = {
    "a_java_handler_that_raises": JavaScene("failing_handler", "throw", 100),
    "a_java_handler_slower_than_what_comes": JavaScene("slow_handler", "sleep:1500", 3000),
    "a_java_handler_that_hangs": JavaScene("slow_handler", "sleep:600000", 30),
    "a_java_orderly_queue_that_fails": JavaScene("poison_message", "orderly+fail:m0", 3),
    "a_java_member_without_its_lock": JavaScene("held_lock", "orderly+well", 3),
    "a_java_member_that_is_suspended": JavaScene("stalled_queue", "suspended"),
}


@dataclass(frozen=True)
class Java:
    """The JVM, and the stage of each of its groups."""

    peer: JavaPeer
    stages: Mapping[str, Stage]


WELL = "a_java_group_that_is_well"


# --- the diagnoses


async def diagnosed(client: ClientInstance, group: str) -> Diagnosis:
    return await diagnose(client, group)


async def first_is(client: ClientInstance, group: str, cause: str, evidence: str) -> str:
    """Return why this cause is not the first finding; empty if it is."""
    seen: list[Diagnosis] = []

    async def is_first() -> bool:
        seen.append(await diagnosed(client, group))
        first = next(iter(seen[-1].problems), None)
        return first is not None and first.cause == cause and evidence in first.evidence

    try:
        await eventually(is_first, f"{cause} is the first finding", WITHIN_SECONDS)
    except AssertionError:
        return f"{cause} with {evidence!r} is not first in {seen[-1].problems} {seen[-1].errors}"
    return ""


@pytest.fixture
async def client(rocketmq: RealCluster) -> AsyncIterator[ClientInstance]:
    """A client that only queries, and is not a member of any group."""
    asking = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,)))
    yield asking
    await asking.remoting.close()


@pytest.fixture(scope="module")
def java(rocketmq: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """One JVM with a member in each Java group; most messages are stored before it starts."""
    directory, stages = tmp_path_factory.mktemp("java"), {}
    lines = []
    for name, made in {**JAVA_SCENES, WELL: JavaScene("", "well")}.items():
        stage = stages[name] = Stage(rocketmq, directory, fresh_name(name, "group"))
        stage.send(topic := stage.topic(), made.messages)
        if made.cause == "held_lock":
            stage.lock(topic)
        if made.way == "suspended":  # without pulls, only stored offsets show where it starts
            stage.set_group()
            for queue in offsets.queues(rocketmq, topic):
                offsets.commit(rocketmq, stage.group, topic, queue, 0)
        lines.append(f"{stage.group} {topic} {made.tags} {made.way}")
    with start_behaving(rocketmq.nameserver, lines, directory) as peer:
        for name, made in JAVA_SCENES.items():
            if made.way == "suspended":
                stages[name].send(f"{stages[name].group}_topic", 30)
        yield Java(peer, stages)


@pytest.mark.slow
async def test_each_cause_is_the_first_finding(
    rocketmq: RealCluster, java: Java, client: ClientInstance, tmp_path: Path
) -> None:
    turn = asyncio.Semaphore(MAX_AT_ONCE)

    async def play(name: str, cause: str, produce: Scene) -> str:
        stage = Stage(rocketmq, tmp_path, fresh_name(name, "group"))
        async with turn, produce(stage) as evidence:
            return await first_is(client, stage.group, cause, evidence)

    of_java = (first_is(client, java.stages[name].group, made.cause, "") for name, made in JAVA_SCENES.items())
    scenes = {name: of for name, of in SCENES.items() if not (release.is_4() and name == "a_member_that_would_pop")}
    wrong = await asyncio.gather(*(play(name, *of) for name, of in scenes.items()), *of_java)
    told = {name: text for name, text in zip([*scenes, *JAVA_SCENES], wrong, strict=True) if text}
    assert not told, "\n".join(f"{name}: {text}" for name, text in told.items())


@pytest.mark.slow
async def test_healthy_groups_have_no_findings(
    rocketmq: RealCluster, java: Java, client: ClientInstance, tmp_path: Path
) -> None:
    """20 runs under load, for a Java group and for an rmqd group whose second member joins and leaves."""
    stages = java.stages[WELL], Stage(rocketmq, tmp_path, fresh_name("well", "group"))
    groups, topics = [one.group for one in stages], [f"{java.stages[WELL].group}_topic", stages[1].topic()]
    loads = [Load(rocketmq, topic, 100_000, per_second=100, queues=2) for topic in topics]
    with loads[0], loads[1]:
        async with stages[1].member(Seen(), topics[1]) as m:
            await eventually(lambda: m.queue(), "it has its queues")
            for _ in range(2):
                async with stages[1].member(Seen(), topics[1]):
                    await no_findings(client, groups, times=5)
                await no_findings(client, groups, times=5)


async def no_findings(client: ClientInstance, groups: Sequence[str], *, times: int) -> None:
    for _ in range(times):
        for diagnosis in await asyncio.gather(*(diagnosed(client, group) for group in groups)):
            assert (diagnosis.problems, diagnosis.errors) == ((), {})


@pytest.mark.slow
async def test_a_read_only_broker_is_reported(rocketmq: RealCluster, java: Java, client: ClientInstance) -> None:
    group, where = java.stages[WELL].group, f"{rocketmq.broker.spec.broker_name} ({rocketmq.broker.address})"
    rocketmq.set_broker(brokerPermission=4)
    try:
        wrong = await first_is(client, group, "broker_read_only", f"{where} is read-only (brokerPermission=4)")
    finally:
        rocketmq.set_broker(brokerPermission=6)
    assert wrong == ""


class LateClock(SystemClock):
    """A clock that is ten minutes ahead of the brokers' clocks."""

    def wall(self) -> float:
        return super().wall() + 600


@pytest.mark.slow
async def test_a_clock_ahead_of_the_brokers_is_the_only_finding(java: Java, client: ClientInstance) -> None:
    late = ClientInstance(client.options, clock=LateClock())
    try:
        (found,) = (await diagnose(late, java.stages[WELL].group)).problems
    finally:
        await late.close()
    assert found.cause == "clock_skew"
    assert "is 10 min behind that of this host" in found.evidence


@pytest.mark.process
def test_findings_include_the_state_of_the_daemon(rocketmq: RealCluster, group: str, tmp_path: Path) -> None:
    """A member without an existing topic is not connected to any broker, so only the daemon knows it."""
    config = ledger_group(f"{group}_missing", tmp_path / "ledger", "a")
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: config}) as daemon:
        wait_until(lambda: daemon.get("/livez")[0] == 200, "the daemon is alive")
        ended = rmqd("diagnose", group, "-c", daemon.config_path, "-o", "json")
        away = rmqd("diagnose", group, "-n", rocketmq.nameserver, "--http", "127.0.0.1:1")
    assert (ended.code, away.code) == (1, 69)
    first, second, *_ = ended.json()["findings"]
    assert (first["cause"], first["evidence"]) == ("topic_missing", f"no name server knows topic {group}_missing")
    assert (second["cause"], "the daemon's member waits: " in second["evidence"]) == ("no_members", True)


@pytest.mark.process
async def test_output_and_exit_codes_of_the_command(java: Java) -> None:
    """For a healthy group, for a failing group, and with an unreachable name server."""
    well, failing = java.stages[WELL], java.stages["a_java_handler_that_raises"]

    async def ask(group: str, *more: str, nameserver: str = well.cluster.nameserver) -> Ended:
        return await asyncio.to_thread(rmqd, "diagnose", group, "-n", nameserver, *more)

    as_json, as_text, other, unreachable = await asyncio.gather(
        ask(well.group, "-o", "json"),
        ask(failing.group),
        ask(failing.group, "-o", "json"),
        ask("a", nameserver="127.0.0.1:1"),
    )
    assert (as_json.code, as_json.json()) == (0, {"group": well.group, "healthy": True, "findings": []})
    assert (as_text.code, other.code, unreachable.code) == (1, 1, 69)
    document = other.json()
    assert (document["group"], document["healthy"]) == (failing.group, False)
    first = document["findings"][0]
    assert (first.keys(), first["cause"]) == ({"cause", "evidence", "next"}, "failing_handler")
    assert f"`rmqd dlq show {failing.group}`" in first["next"]
    assert "1. failing_handler" in as_text.out.splitlines()
    assert f"`rmqd dlq show {failing.group} --nameserver {well.cluster.nameserver}`" in as_text.out  # not wrapped


@pytest.mark.skipif(release.wanted() == release.EMBEDDED, reason="its name server is in the broker's process")
@pytest.mark.slow
async def test_an_unresponsive_broker_is_the_first_finding(rocketmq_faulty: RealCluster, group: str) -> None:
    asking = ClientInstance(ClientOptions(nameservers=(rocketmq_faulty.nameserver,)))
    stage = Stage(rocketmq_faulty, Path(), group)
    stage.set_group()
    rocketmq_faulty.pause("broker")
    try:
        wrong = await first_is(asking, group, "no_route", f"({rocketmq_faulty.broker.address}) does not respond")
    finally:
        rocketmq_faulty.resume("broker")
        await asking.remoting.close()
    assert wrong == ""


@pytest.mark.slow
async def test_a_hung_member_is_the_first_finding(java: Java, client: ClientInstance) -> None:
    """The last test of the JVM, because it freezes: connections stay open without responses."""
    java.peer.freeze()
    evidence = f"@{java.peer.pid}#"
    assert await first_is(client, java.stages[WELL].group, "orphaned_queue", evidence) == ""
