"""The basis of checkpoints and membership on a real RocketMQ: resets that are returned once, and lists of members."""

from __future__ import annotations

import asyncio

import pytest

from rmqd.client.api.admin_requests import reset_offset
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.config.model.root_model import RootConfig
from rmqd.errors import GroupHeldElsewhereError
from rmqd.spark.engine.driver_membership import DriverMembership
from rmqd.spark.session.group_spec import GroupSpec
from rmqd.spark.session.spark_cluster import SparkCluster, cluster_of, values_or_raise
from tests.consumer.members import member
from tests.rocketmq import RealCluster, release
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually


def order_of(rocketmq: RealCluster, topic: str, group: str) -> GroupSpec:
    settings = {"engine": "spark", "subscriptions": {topic: "*"}, "handler": {"plugin": "noop"}}
    return GroupSpec(group, RootConfig.model_validate({"nameserver": rocketmq.nameserver, "groups": {group: settings}}))


async def reset(rocketmq: RealCluster, topic: str, group: str) -> None:
    """Reset the group to the beginning, with request 222."""
    client = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,)))
    try:
        await reset_offset(client.remoting, rocketmq.broker.address, group, topic, 0)
    finally:
        await client.close()


@pytest.mark.skipif(release.is_4(), reason="a RocketMQ 4 keeps no reset")
def test_a_reset_is_kept_until_a_pull_and_blocks_commits(rocketmq: RealCluster, topic: str, group: str) -> None:
    """The pull needs no member, and returns the new offset. After it commits are accepted again."""
    cluster: SparkCluster = cluster_of(order_of(rocketmq, topic, group).access)
    queues = values_or_raise(cluster.queues([topic])).popitem()[1]
    producer = Producer(rocketmq.broker.address, topic, len(queues))
    for number in range(4 * len(queues)):
        producer.send(key=f"m{number}", queue=number % len(queues))
    producer.close()
    stored = values_or_raise(cluster.committed_offsets(group, queues))  # creates the group
    assert set(stored.values()) <= {None, 0}
    values_or_raise(cluster.commit(group, dict.fromkeys(queues, 3)))
    assert set(values_or_raise(cluster.pending_resets(group, dict.fromkeys(queues, 3))).values()) == {None}

    asyncio.run(reset(rocketmq, topic, group))
    values_or_raise(cluster.commit(group, dict.fromkeys(queues, 4)))
    assert set(values_or_raise(cluster.committed_offsets(group, queues)).values()) == {0}
    assert set(values_or_raise(cluster.pending_resets(group, dict.fromkeys(queues, 0))).values()) == {0}
    assert set(values_or_raise(cluster.pending_resets(group, dict.fromkeys(queues, 0))).values()) == {None}
    values_or_raise(cluster.commit(group, dict.fromkeys(queues, 4)))
    assert set(values_or_raise(cluster.committed_offsets(group, queues)).values()) == {4}


async def test_only_one_engine_has_the_group(
    rocketmq: RealCluster, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each engine is refused while the other one has the group. A member that has left is forgotten at once."""
    monkeypatch.setattr("rmqd.consumer.rebalance.ownership.STARTING_SENIOR_WAIT_SECONDS", 0.3)
    order = order_of(rocketmq, topic, group)
    async with member(rocketmq.nameserver, Seen(), group=group, subscriptions=[topic]) as local:
        await eventually(lambda: len(local.owned()) == 8, "the member has all queues")
        with pytest.raises(GroupHeldElsewhereError, match=local.client.client_id):
            await DriverMembership(order).join()
    membership = DriverMembership(order)
    await membership.join()
    with pytest.raises(ExceptionGroup) as caught:
        async with member(rocketmq.nameserver, Seen(), group=group, subscriptions=[topic]) as refused:
            await refused.task
    assert caught.group_contains(GroupHeldElsewhereError, match=membership.client_id)
    await membership.leave()
    async with member(rocketmq.nameserver, Seen(), group=group, subscriptions=[topic]) as local:
        await eventually(lambda: len(local.owned()) == 8, "the member has all queues")
