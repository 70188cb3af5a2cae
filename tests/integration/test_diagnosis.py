"""`rmqd diagnose` on a real broker: each cause is produced, and is the first finding; a group that is well has none.

The groups of most causes are side by side on one broker, and are diagnosed side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rmqd.client.instance import ClientInstance
from rmqd.client.looks.diagnosis import Diagnosis, diagnose
from rmqd.client.options import ClientOptions
from rmqd.clock import SystemClock
from rmqd.consumer.allocate import AllocateStrategy
from rmqd.handler import Batch
from tests.cli.command import Ended, rmqd
from tests.consumer.members import member
from tests.integration.load import Load
from tests.rocketmq import RealCluster, offsets, rpc
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.peers import JavaPeer, start_behaving
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.rocketmq

LOCK_BATCH_MQ = 41
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
WITHIN_SECONDS = 30.0


@dataclass
class Stage:
    """Where one cause is produced: a group of its own, and topics as it needs them."""

    cluster: RealCluster
    directory: Path
    group: str

    def topic(self, queues: int = 2, name: str = "topic") -> str:
        return self.cluster.create_topic(f"{self.group}_{name}", queues)

    def send(self, topic: str, count: int, queues: int = 2) -> None:
        with Producer(self.cluster.broker.address, topic, queues) as producer:
            for number in range(count):
                producer.send(key=f"m{number}")

    def member(self, handle: Any, *topics: str, **options: Any) -> Any:
        given = {"subscriptions": list(topics), "consume_from_where": "first_offset", **options}
        return member(self.cluster.nameserver, handle, group=self.group, **given)

    def set_group(self, **settings: Any) -> None:
        body = {"groupName": self.group, "brokerId": 0, "retryQueueNums": 1, "retryMaxTimes": 16, **settings}
        rpc.call(self.cluster.broker.address, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(body).encode())


Scene = Callable[[Stage], contextlib.AbstractAsyncContextManager[str]]
"""Produces a cause for as long as the block lasts; gives what its evidence must name."""
SCENES: dict[str, tuple[str, Scene]] = {}
"""By the name of the scene: the cause, and how it is produced."""


def scene(cause: str) -> Callable[[Callable[[Stage], AsyncIterator[str]]], Scene]:
    def keep(make: Callable[[Stage], AsyncIterator[str]]) -> Scene:
        produce = contextlib.asynccontextmanager(make)
        SCENES[make.__name__] = cause, produce
        return produce

    return keep


async def fail(batch: Batch) -> None:
    raise ValueError("as told")


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
        yield f"TAG 'paid' of {topic}"


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


# --- groups of Java, all in one JVM; their ways are those of BehavingMembers


@dataclass(frozen=True)
class JavaScene:
    """A cause that Java's member of a group produces by its way, and how many messages wait for it at its start."""

    cause: str
    way: str
    messages: int = 0
    tags: str = "*"


JAVA_SCENES = {
    "a_java_handler_that_raises": JavaScene("failing_handler", "throw", 100),
    "a_java_handler_slower_than_what_comes": JavaScene("slow_handler", "sleep:1500", 3000),
    "a_java_handler_that_hangs": JavaScene("slow_handler", "sleep:600000", 30),
}


@dataclass(frozen=True)
class Java:
    """The JVM, and where each of its groups is."""

    peer: JavaPeer
    stages: Mapping[str, Stage]


WELL = "a_java_group_that_is_well"


# --- they are diagnosed


async def diagnosed(client: ClientInstance, group: str) -> Diagnosis:
    return await diagnose(client, SystemClock(), group)


async def first_is(client: ClientInstance, group: str, cause: str, evidence: str) -> str:
    """What went wrong; empty where the first finding is this one."""
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
    """Asks, and is a member of nothing."""
    asking = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,)))
    yield asking
    await asking.remoting.close()


@pytest.fixture(scope="module")
def java(rocketmq: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """One JVM with a member in each of Java's groups; the messages are there before it starts."""
    directory, stages = tmp_path_factory.mktemp("java"), {}
    lines = []
    for name, made in {**JAVA_SCENES, WELL: JavaScene("", "well")}.items():
        stage = stages[name] = Stage(rocketmq, directory, fresh_name(name, "group"))
        stage.send(topic := stage.topic(), made.messages)
        lines.append(f"{stage.group} {topic} {made.tags} {made.way}")
    with start_behaving(rocketmq.nameserver, lines, directory) as peer:
        yield Java(peer, stages)


@pytest.mark.slow
async def test_each_cause_is_the_first_finding(
    rocketmq: RealCluster, java: Java, client: ClientInstance, tmp_path: Path
) -> None:
    async def play(name: str, cause: str, produce: Scene) -> str:
        stage = Stage(rocketmq, tmp_path, fresh_name(name, "group"))
        async with produce(stage) as evidence:
            return await first_is(client, stage.group, cause, evidence)

    of_java = (first_is(client, java.stages[name].group, made.cause, "") for name, made in JAVA_SCENES.items())
    wrong = await asyncio.gather(*(play(name, *of) for name, of in SCENES.items()), *of_java)
    told = {name: text for name, text in zip([*SCENES, *JAVA_SCENES], wrong, strict=True) if text}
    assert not told, "\n".join(f"{name}: {text}" for name, text in told.items())


@pytest.mark.slow
async def test_a_group_that_is_well_has_no_finding(java: Java, client: ClientInstance) -> None:
    """Twenty runs under load, of a group of Java."""
    group, topic = java.stages[WELL].group, f"{java.stages[WELL].group}_topic"
    with Load(java.stages[WELL].cluster, topic, 100_000, per_second=200, queues=2):
        for _ in range(20):
            assert (await diagnosed(client, group)).problems == ()
            await asyncio.sleep(0.2)


@pytest.mark.process
async def test_the_command(java: Java) -> None:
    """What it prints, and how it ends, for a group that is well, for one that is not, and where nobody answers."""
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
    assert f"`rmqd dlq show {failing.group}`" in as_text.out  # not cut at the end of a line


@pytest.mark.slow
async def test_a_broker_that_does_not_answer(rocketmq_faulty: RealCluster, group: str) -> None:
    asking = ClientInstance(ClientOptions(nameservers=(rocketmq_faulty.nameserver,)))
    stage = Stage(rocketmq_faulty, Path(), group)
    stage.set_group()
    rocketmq_faulty.pause("broker")
    try:
        wrong = await first_is(asking, group, "no_route", f"({rocketmq_faulty.broker.address}) does not answer")
    finally:
        rocketmq_faulty.resume("broker")
        await asking.remoting.close()
    assert wrong == ""


@pytest.mark.slow
async def test_a_member_that_hangs(java: Java, client: ClientInstance) -> None:
    """The last of its JVM: connections stay open, and nothing answers."""
    java.peer.freeze()
    evidence = f"@{java.peer.pid}#"
    assert await first_is(client, java.stages[WELL].group, "orphaned_queue", evidence) == ""
