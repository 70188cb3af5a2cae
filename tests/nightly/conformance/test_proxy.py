"""A group that connects to a proxy's remoting port instead of a name server, next to a Java consumer."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd import Batch
from rmqd.errors import PopNotSupportedError
from tests.conformance import behaviour
from tests.conformance.attempts import CLIENTS_PROPERTIES, Attempt, Attempts, steps
from tests.conformance.scripted import both
from tests.consumer.members import member
from tests.rocketmq import RealCluster
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.peers import start_scripted
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually

QUEUES = 4
TURNS = 30  # a Java member that gets no CPU for long loses its queues to the other member for a while
NO_PROXY = "left out: it has no proxy"


def store(cluster: RealCluster, topic: str, keys: dict[str, str], *, queue: int | None = None) -> None:
    """Store a message for each key, with its script."""
    with Producer(cluster.broker.address, topic, QUEUES) as producer:
        for key, script in keys.items():
            properties = {"script": script, "UNIQ_KEY": f"{topic}.{key}"}
            producer.send(key.encode(), key=key, properties=properties, queue=queue)


def shown(attempts: list[Attempt]) -> list[tuple[str | None, int]]:
    """Keys and reconsume times."""
    return sorted((attempt.keys, attempt.reconsume_times) for attempt in attempts)


def properties(attempts: list[Attempt]) -> list[tuple[str | None, int, list[str]]]:
    """The names of each attempt's properties, without the properties that Java's client adds."""
    return sorted(
        (attempt.keys, attempt.reconsume_times, sorted(attempt.properties.keys() - CLIENTS_PROPERTIES))
        for attempt in attempts
    )


def leaf(error: BaseException) -> BaseException:
    """The first error that is not an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@behaviour(
    "proxy",
    "A member sends failed messages back and does not store them itself",
    java="CONSUMER_SEND_MSG_BACK with the field bname, which the proxy requires",
    rmqd="the same",
    checked="compared with a Java consumer: the properties of each attempt; no send-back is rejected",
    since="5.0",
    embedded=NO_PROXY,
)
@behaviour(
    "proxy",
    "A concurrent group pulls and commits, and failed messages are redelivered",
    java="sends back with the broker's name, so that the proxy can relay the request",
    rmqd="the same",
    checked="compared with a Java consumer on the same port: the attempts of one script; offsets at the broker",
    since="5.0",
    embedded=NO_PROXY,
)
async def test_concurrent_group_through_a_proxy(rocketmq_proxied: RealCluster, group: str, tmp_path: Path) -> None:
    """This includes retries, whose topic has no route before the first send-back."""
    cluster = rocketmq_proxied
    topic = cluster.create_topic(fresh_name(group, "topic"), QUEUES)
    scripts = {f"m{number}": "ok" for number in range(12)} | {"once": "later,ok", "twice": "later,later,ok"}
    store(cluster, topic, scripts)

    options: dict[str, Any] = {"consume_from_where": "first_offset", "nameserver": cluster.proxy}
    with capture_logs() as logged:
        async with both(cluster, group, tmp_path, [topic], **options) as sides:
            java, rmqd = await sides.finish(topic, attempts=12 + 2 + 3, retries=True, timeout_seconds=60)

    assert shown(java) == shown(rmqd)
    assert len(rmqd) == 17
    assert properties(java) == properties(rmqd)
    assert not [line for line in logged if line["event"] == "send_back.failed"]


@behaviour(
    "proxy",
    "An orderly group locks its queues, and retries failed messages in place",
    java="locks through the proxy, which relays the request to the broker",
    rmqd="the same",
    checked="compared with a Java consumer on the same port: the attempts of one script, in order",
    since="5.0",
    embedded=NO_PROXY,
)
async def test_orderly_group_through_a_proxy(rocketmq_proxied: RealCluster, group: str, tmp_path: Path) -> None:
    """The second message of one queue suspends the queue once."""
    cluster = rocketmq_proxied
    topic = cluster.create_topic(fresh_name(group, "topic"), QUEUES)
    store(cluster, topic, {"a": "ok", "b": "suspend:100,ok", "c": "ok"}, queue=1)

    options: dict[str, Any] = {
        "java": {"orderly": "true"},
        "consume_mode": "orderly",
        "consume_from_where": "first_offset",
        "nameserver": cluster.proxy,
    }
    async with both(cluster, group, tmp_path, [topic], **options) as sides:
        java, rmqd = await sides.finish(topic, attempts=4, timeout_seconds=60)

    assert steps(java) == steps(rmqd)
    assert [attempt.keys for attempt in rmqd] == ["a", "b", "b", "c"]


@behaviour(
    "proxy",
    "Members that connect to the proxy divide a group's queues",
    java=(
        "sees the members that connect to the proxy, and no member that connects to a broker: all "
        "members must use one path"
    ),
    rmqd="the same",
    checked="a Java member and an rmqd member in one group, both through the proxy: each queue has one owner",
    since="5.0",
    embedded=NO_PROXY,
)
async def test_members_share_a_group_through_a_proxy(rocketmq_proxied: RealCluster, group: str, tmp_path: Path) -> None:
    """Once both members pull, each message is handled by one of them, and both handle half of the messages."""
    cluster, seen = rocketmq_proxied, Seen()
    topic = cluster.create_topic(fresh_name(group, "topic"), QUEUES)
    options = {"subscriptions": f"{topic}=TAG=*", "attempts": tmp_path / "attempts"}

    def handled(prefix: str) -> tuple[list[str], list[str]]:
        java = [str(key) for key in Attempts.read(tmp_path / "attempts").keys]
        by_both = java, [str(attempt.key) for attempt in seen.attempts]
        return tuple([key for key in keys if key.startswith(prefix)] for keys in by_both)  # type: ignore[return-value]

    def all_are_handled(prefix: str) -> bool:
        return sum(map(len, handled(prefix))) >= 40

    with await asyncio.to_thread(start_scripted, cluster.proxy, group, tmp_path, **options):
        async with member(
            cluster.proxy, seen, group=group, subscriptions=[topic], consume_from_where="first_offset"
        ) as one:
            await eventually(lambda: len(one.owned()) == QUEUES // 2, "each has its half of the queues", 60)
            store(cluster, topic, {f"first{number}": "ok" for number in range(40)})  # Java may still have all queues
            await eventually(lambda: len({*handled("first")[0], *handled("first")[1]}) == 40, "all are handled", 60)
            for turn in range(TURNS):
                then = f"then{turn}."
                store(cluster, topic, {f"{then}{number}": "ok" for number in range(40)})
                await eventually(partial(all_are_handled, then), "all are handled", 60)
                java, rmqd = handled(then)
                assert len({*java, *rmqd}) == 40
                if len(java) == len(rmqd):
                    break
    assert len(java) == len(rmqd) == 20


@behaviour(
    "proxy",
    ("The proxy does not relay POP by remoting: it rejects request 400, and does not answer acknowledgements"),
    java="pulls instead; only its log says so",
    rmqd="the group fails; its error names the proxy as a possible reason, and a remedy",
    checked="the response of a real proxy",
    since="5.0",
    embedded=NO_PROXY,
)
async def test_the_error_of_pop_through_a_proxy_names_the_proxy(rocketmq_proxied: RealCluster, group: str) -> None:
    """Otherwise popped messages could not be acknowledged."""
    cluster = rocketmq_proxied
    topic = cluster.create_topic(fresh_name(group, "topic"), QUEUES)

    async def handle(_: Batch) -> None:
        raise AssertionError("nothing is popped")

    with pytest.raises((PopNotSupportedError, ExceptionGroup)) as failed:
        async with member(cluster.proxy, handle, group=group, subscriptions=[topic], consume_mode="pop") as one:
            await eventually(one.task.done, "the group fails")
    error = leaf(failed.value)
    assert isinstance(error, PopNotSupportedError)
    assert "proxy" in str(error)
