"""Light message queues (LMQ) on two real brokers: a group reads a queue by its name, although it has no route."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.handler_api.batch import Batch, DeadLetter
from tests.conformance import behaviour
from tests.conformance.attempts import Attempts
from tests.consumer.members import member
from tests.rocketmq import ClusterSpec, RealCluster, offsets, release
from tests.rocketmq.fixtures import DELAY_LEVELS, fresh_name
from tests.rocketmq.peers import start_scripted
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = [pytest.mark.rocketmq, pytest.mark.slow]

MESSAGES = 60  # on each broker
PARENT_QUEUES = 4


@pytest.fixture(scope="module")
def with_light_queues() -> Iterator[RealCluster]:
    settings = {
        "enableLmq": "true",
        "enableMultiDispatch": "true",
        "messageDelayLevel": " ".join(["1s"] * DELAY_LEVELS),
    }
    brokers = 1 if release.wanted() == release.EMBEDDED else 2
    with RealCluster.start(ClusterSpec(brokers=brokers, heap="384m", settings=settings)) as cluster:
        yield cluster


def send(cluster: RealCluster, topic: str, dispatch: list[str], first: int = 0) -> dict[str, set[str]]:
    """Store messages on each broker, dispatched to these queues in turn. Return the keys of each queue."""
    keys: dict[str, set[str]] = {}
    for master in cluster.masters:
        with Producer(master.address, topic) as producer:
            for number in range(first, first + MESSAGES):
                names, key = dispatch[number % len(dispatch)], f"{master.name}-{number}"
                properties = {"INNER_MULTI_DISPATCH": names} if names else {}
                producer.send(key=key, tags="T", queue=number % PARENT_QUEUES, properties=properties)
                for name in filter(None, names.split(",")):
                    keys.setdefault(name, set()).add(key)
    return keys


@behaviour(
    "queues",
    "A light message queue, such as %LMQ%room-7, is read by name, on every broker",
    java=(
        "name servers have no route for it, so it receives nothing and logs nothing, unless the "
        "application puts a route into the client by hand; offsets are then of the parent topic's "
        "queues"
    ),
    rmqd=(
        "read in queue 0 of every broker, by the messages' offsets in the light queue; messages keep the"
        " topic and keys of their send"
    ),
    checked=(
        "messages in two such queues over a topic of eight queues, with failures and dead letters; a "
        "Java consumer of the same queue"
    ),
    since="5.0",
)
@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
async def test_light_queues_are_read_by_name(
    with_light_queues: RealCluster, request: pytest.FixtureRequest, tmp_path: Path, mode: str
) -> None:
    cluster, nameserver = with_light_queues, with_light_queues.nameserver
    topic = cluster.create_topic(fresh_name(request.node.name, "topic"), PARENT_QUEUES)
    ours, other = f"%LMQ%{topic}-a", f"%LMQ%{topic}-b"
    wanted = await asyncio.to_thread(send, cluster, topic, [f"{ours},{other}", other, ours, ""])
    group, seen = fresh_name("light", "group"), Seen()
    failing, dead = sorted(wanted[ours])[3], sorted(wanted[ours])[4]

    async def handle(batch: Batch) -> None:
        again = batch[0].keys in seen.keys
        await seen(batch)
        if batch[0].keys == failing and not again:
            raise RuntimeError("not now")
        if batch[0].keys == dead:
            raise DeadLetter("not at all")

    options: dict[str, Any] = {"group": group, "subscriptions": [ours], "consume_from_where": "first_offset"}
    options["consume_mode"] = mode
    java = {"attempts": tmp_path / "java", "subscriptions": f"{ours}=TAG=*"}
    with await asyncio.to_thread(start_scripted, nameserver, fresh_name("java", "group"), tmp_path, **java):
        async with member(nameserver, handle, **options):
            expected = Counter(wanted[ours]) + Counter([failing])
            await eventually(lambda: Counter(seen.keys) == expected, f"{len(wanted[ours])} are handled", 40)
        assert {attempt.topic for attempt in seen.attempts} == {topic}
        for broker in (master.spec.broker_name for master in cluster.masters):
            places = [
                one.offset for one in seen.attempts if one.queue.topic == ours and one.queue.broker_name == broker
            ]
            assert sorted(set(places)) == list(range(MESSAGES // 2))
        async with member(nameserver, handle, **options):  # continues at the committed offsets
            more = await asyncio.to_thread(send, cluster, topic, [ours], MESSAGES)
            expected += Counter(more[ours])
            await eventually(lambda: len(seen.keys) >= expected.total(), "what comes then is handled", 40)
            stored = await asyncio.to_thread(offsets.stored, cluster, f"%DLQ%{group}")
            assert sum(stored.values()) == 1  # the dead letter did not return to the light queue
        assert Counter(seen.keys) == expected
        assert not Attempts.read(tmp_path / "java")


async def test_a_broker_without_light_queues_is_reported(
    rocketmq: RealCluster, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is stuck, and names the missing setting of its broker."""
    for name, seconds in {"CHECK_INTERVAL": 0.1, "STALL": 1.0}.items():
        monkeypatch.setattr(f"rmqd.consumer.health.watchdog.{name}_SECONDS", seconds)
    async with member(rocketmq.nameserver, Seen(), group=group, subscriptions=["%LMQ%none"]) as m:

        def why() -> str:
            return " ".join(one.stall.next for one in m.consumer.snapshot().queues if one.stall is not None)

        await eventually(lambda: "enableLmq=true" in why(), "the queue says what its broker lacks", 60)
