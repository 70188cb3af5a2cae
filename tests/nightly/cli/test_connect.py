"""`rmqd check --connect`: each mismatch of cluster and configuration has a line and an exit code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmqd.client.api.group_requests import consumer_connection, send_heartbeat, update_subscription_group
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.errors.broker_errors import ConsumerNotOnlineError
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from rmqd.wire.bodies.heartbeat_data import ConsumerData, HeartbeatData, tag_subscription
from tests.cli.command import Ended, rmqd
from tests.rocketmq import release
from tests.rocketmq.cluster import RealCluster

pytestmark = pytest.mark.process

Check = Callable[..., Ended]


@pytest.fixture
def check(rocketmq: RealCluster, group: str, topic: str, tmp_path: Path) -> Check:
    """Runs `rmqd check --connect -o json` on a group of the topic, with some of its keys replaced."""

    def run(*arguments: str, **keys: object) -> Ended:
        settings = {"subscriptions": {topic: "*"}, "handler": {"plugin": "log"}, **keys}
        path = tmp_path / "rmqd.yaml"
        path.write_text(yaml.safe_dump({"nameserver": rocketmq.nameserver, "groups": {group: settings}}))
        return rmqd("check", "--connect", "-c", path, "-o", "json", *arguments)

    return run


def errors(ended: Ended) -> list[str]:
    return [f"{one['subject']}: {one['message']}" for one in ended.json()["checks"] if one["level"] != "ok"]


@contextlib.asynccontextmanager
async def member(cluster: RealCluster, group: str, subscriptions: dict[str, str]) -> AsyncIterator[None]:
    """Another member of the group, while the block runs."""
    wanted = tuple(tag_subscription(topic, expression, 1) for topic, expression in subscriptions.items())
    remoting = RemotingClient()
    heartbeat = HeartbeatData("10.1.2.3@other", (ConsumerData(group, wanted),))
    await send_heartbeat(remoting, cluster.broker.address, heartbeat)
    try:
        yield
    finally:
        await remoting.close()


def test_a_matching_cluster_passes(check: Check, rocketmq: RealCluster, group: str, topic: str) -> None:
    settings = SubscriptionGroupConfig(group_name=group)
    asyncio.run(_update(rocketmq, settings))

    ended = check()

    assert ended.code == 0, ended.out
    document = ended.json()
    assert document["ok"]
    assert errors(ended) == []
    assert f"name server {rocketmq.nameserver}" in [one["subject"] for one in document["checks"]]
    assert any(one["message"] == "8 queues on 1 broker" for one in document["checks"])


def test_check_does_not_join_the_group(check: Check, rocketmq: RealCluster, group: str) -> None:
    check()

    async def ask() -> None:
        remoting = RemotingClient()
        try:
            await consumer_connection(remoting, rocketmq.broker.address, group)
        finally:
            await remoting.close()

    with pytest.raises(ConsumerNotOnlineError):
        asyncio.run(ask())


def test_a_group_that_the_broker_does_not_know_yet_is_a_warning(check: Check) -> None:
    ended = check()

    assert ended.code == 0
    (warning,) = errors(ended)
    assert "does not know the group yet" in warning
    assert errors(check()) == [warning]  # the first check did not create the group


def test_a_missing_topic_is_an_error(check: Check, group: str) -> None:
    ended = check(subscriptions={"no-such-topic": "*"})

    assert ended.code == 1
    assert errors(ended) == [
        f"groups.{group}.subscriptions.no-such-topic: no name server knows topic no-such-topic; "
        "if the topic exists, start its broker (`rmqd topics list` lists the topics that answer); otherwise create it, "
        "or remove it from the group's subscriptions"
    ]


def test_an_unreadable_topic_is_an_error(check: Check, rocketmq: RealCluster, topic: str) -> None:
    rocketmq.create_topic(topic, permission=2)

    ended = check()

    assert ended.code == 1
    assert any("is not readable on broker-a" in error for error in errors(ended))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"consume_enable": False}, "forbids the group to consume (consumeEnable is false)"),
        ({"retry_queue_nums": 0}, "has no retry queue for the group (retryQueueNums)"),
    ],
)
def test_broker_settings_that_prevent_consuming_or_retries_are_errors(
    check: Check, rocketmq: RealCluster, group: str, change: dict[str, Any], said: str
) -> None:
    asyncio.run(_update(rocketmq, replace(SubscriptionGroupConfig(group_name=group), **change)))

    ended = check()

    assert ended.code == 1
    assert any(said in error for error in errors(ended))


def test_broker_settings_of_a_broadcasting_group(check: Check, rocketmq: RealCluster, group: str) -> None:
    """Broadcasting groups have no retries."""
    settings = SubscriptionGroupConfig(group_name=group, retry_queue_nums=0)
    asyncio.run(_update(rocketmq, settings))
    assert check(message_model="broadcasting").code == 0

    asyncio.run(_update(rocketmq, replace(settings, consume_broadcast_enable=False)))
    assert any("forbids broadcasting" in error for error in errors(check(message_model="broadcasting")))


async def _update(cluster: RealCluster, settings: SubscriptionGroupConfig) -> None:
    remoting = RemotingClient()
    try:
        await update_subscription_group(remoting, cluster.broker.address, settings)
    finally:
        await remoting.close()


def test_an_sql_filter_that_the_broker_refuses(check: Check, topic: str) -> None:
    ended = check(subscriptions={topic: {"sql": "amount >"}})

    assert ended.code == 1
    (error,) = [error for error in errors(ended) if "SQL" in error]
    assert "refuses the SQL filter 'amount >'" in error
    assert "\n" not in error


def test_an_sql_filter_that_the_broker_accepts(check: Check, topic: str) -> None:
    ended = check(subscriptions={topic: {"sql": "amount > 100 AND region = 'eu'"}})

    assert ended.code == 0
    assert any(one["message"].endswith("accepts the SQL filter") for one in ended.json()["checks"])


@pytest.mark.parametrize(
    ("theirs", "ours", "said"),
    [
        ("paid || refunded", "refunded||paid", None),
        ("*", "*", None),
        ("paid", "*", "subscribe to {topic} by TAG 'paid', the configuration by TAG '*'"),
        (None, "*", "do not subscribe to {topic}, the configuration does"),
    ],
)
async def test_the_subscriptions_of_other_members_are_compared(
    check: Check, rocketmq: RealCluster, group: str, topic: str, theirs: str | None, ours: str, said: str | None
) -> None:
    subscriptions = {"other-topic": "*"} if theirs is None else {topic: theirs}
    async with member(rocketmq, group, subscriptions):
        ended = await asyncio.to_thread(check, subscriptions={topic: ours})

    if said is None:
        assert ended.code == 0, ended.out
        assert any("agrees with 1 member on broker-a" in one["message"] for one in ended.json()["checks"])
    else:
        assert ended.code == 1
        assert any(said.format(topic=topic) in error for error in errors(ended))
        assert all("10.1.2.3@other" in error for error in errors(ended))


def test_text_output_has_a_line_for_each_check(rocketmq: RealCluster, group: str, topic: str, tmp_path: Path) -> None:
    (tmp_path / "rmqd.yaml").write_text(
        f"nameserver: {rocketmq.nameserver}\n"
        f'groups: {{{group}: {{subscriptions: {{{topic}: "*"}}, handler: {{plugin: log}}}}}}\n'
    )

    ended = rmqd("check", "--connect", "-c", tmp_path / "rmqd.yaml")

    assert f"OK           name server {rocketmq.nameserver}: answers, and knows 1 broker" in ended.out.splitlines()


def test_an_unreachable_name_server_exits_with_69(tmp_path: Path) -> None:
    (tmp_path / "rmqd.yaml").write_text(
        'nameserver: 127.0.0.1:1\ngroups: {g: {subscriptions: {t: "*"}, handler: {plugin: log}}}\n'
    )

    ended = rmqd("check", "--connect", "-c", tmp_path / "rmqd.yaml", "-o", "json")

    assert ended.code == 69
    (found,) = ended.json()["checks"]
    assert (found["level"], found["subject"]) == ("unreachable", "name server 127.0.0.1:1")


def test_one_unreachable_name_server_of_two_is_a_warning(check: Check, rocketmq: RealCluster) -> None:
    ended = check("--set", f"nameserver={rocketmq.nameserver};127.0.0.1:1")

    assert ended.code == 0, ended.out
    assert any(error.startswith("name server 127.0.0.1:1: does not answer") for error in errors(ended))


@pytest.mark.skipif(release.wanted() != release.DEFAULT, reason="only the default release has a proxy here")
def test_a_proxy_in_place_of_a_name_server_is_a_warning(rocketmq_proxied: RealCluster, tmp_path: Path) -> None:
    """Groups can consume through a proxy, but it does not answer the requests of this check."""
    group = 'g: {subscriptions: {t: "*"}, handler: {plugin: log}}'
    (tmp_path / "rmqd.yaml").write_text(f"nameserver: {rocketmq_proxied.proxy}\ngroups: {{{group}}}\n")

    ended = rmqd("check", "--connect", "-c", tmp_path / "rmqd.yaml", "-o", "json")

    assert ended.code == 0, ended.out
    (found,) = ended.json()["checks"]
    assert found["level"] == "warning"
    assert "is a proxy" in found["message"]


def test_a_wrong_configuration_is_reported_without_connecting(tmp_path: Path) -> None:
    (tmp_path / "rmqd.yaml").write_text("nameserver: 127.0.0.1:1\ngroups: {g: {}}\n")

    ended = rmqd("check", "--connect", "-c", tmp_path / "rmqd.yaml", "-o", "json")

    assert ended.code == 78
    assert not ended.json()["ok"]


@pytest.mark.skipif(release.is_4(), reason="RocketMQ 4.9 has no POP")
def test_a_wrong_consume_mode_is_reported_with_the_command_to_change_it(
    check: Check, rocketmq: RealCluster, group: str, topic: str
) -> None:
    """The check does not change the mode."""
    asyncio.run(_update(rocketmq, SubscriptionGroupConfig(group_name=group)))

    for _ in range(2):
        ended = check(consume_mode="pop")
        assert ended.code == 0
        [line] = errors(ended)
        assert f"groups.{group}.subscriptions.{topic}: " in line
        assert "makes the group pull" in line
        assert f"`rmqd groups mode {group} {topic} pop`, or set consume_mode" in line
    assert errors(check(consume_mode="concurrently")) == []

    assert rmqd("groups", "mode", group, topic, "pop", "--yes", "-n", rocketmq.nameserver).code == 0
    ended = check(consume_mode="pop")
    assert errors(ended) == []
    assert any(one["message"].endswith("lets the group pop") for one in ended.json()["checks"])
