"""Members of a group, and the notifications of member changes, as recorded from RocketMQ 5.5.0.

The core of these tests is in test_comings_and_goings.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from tests.broker.beats import UNREGISTER, beat, consumer, heard, members
from tests.broker.peer import Peer
from tests.consumer.members import Member, member
from tests.nightly.broker.test_comings_and_goings import ids, peers
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["peers"]


async def test_a_new_client_id_on_the_same_connection_replaces_the_old_one(peers: tuple[Peer, Peer]) -> None:
    one, _ = peers
    await beat(one, "first", consumer())
    await heard(one)

    await beat(one, "second", consumer())

    assert await heard(one) == []
    assert ids(await members(one)) == ("second",)


async def test_a_group_can_switch_notifications_off(embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]) -> None:
    """Only for joins and unregistering. As in RocketMQ, members are always notified of a lost connection."""
    one, other = peers
    embedded.broker.groups.put(SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=False))
    await beat(one, "one", consumer())
    await beat(other, "other", consumer())
    await other.call(UNREGISTER, {"clientID": "other", "consumerGroup": "g"})
    await beat(other, "other", consumer())
    assert await heard(one) == []

    await other.close()

    assert (await one.request(40)).ext_fields == {"consumerGroup": "g"}


async def test_a_broker_can_switch_notifications_off(embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    broker = embedded.broker
    broker.change_settings(broker.settings.changed({"notifyConsumerIdsChangedEnable": "false"}))

    await beat(one, "one", consumer())
    await beat(other, "other", consumer())

    assert await heard(one) == []


async def test_a_heartbeat_skips_groups_that_cannot_be_created(
    embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]
) -> None:
    """The heartbeat succeeds for the other groups."""
    one, _ = peers
    broker = embedded.broker
    broker.groups.find_or_create("known")
    broker.change_settings(broker.settings.changed({"autoCreateSubscriptionGroup": "false"}))

    reply = await beat(one, "one", consumer("new"), consumer("a b"), consumer("known"), consumer("CID_RMQ_SYS_own"))

    assert reply.code == 0
    assert [info.group for info in broker.consumers.all()] == ["known", "CID_RMQ_SYS_own"]
    assert broker.topics.get("%RETRY%new") is None


@pytest.mark.slow
async def test_rmqd_members_share_the_queues(embedded: EmbeddedRocketMQ) -> None:
    """Each notification causes a rebalance, also when a member dies. No member waits for its rebalance interval."""
    seen = Seen()

    async def share(*members: Member) -> None:
        whole = {("T", queue) for queue in range(4)}
        await eventually(
            lambda: (
                [len(one.owned()) for one in members] == [4 // len(members)] * len(members)
                and set().union(*(one.owned() for one in members)) == whole
            ),
            f"{len(members)} members share the queues",
        )

    async with member(embedded.nameserver, seen, group="g", subscriptions=["T"]) as one:
        await share(one)
        async with member(embedded.nameserver, seen, group="g", subscriptions=["T"]) as other:
            await share(one, other)
            await other.die()
            await share(one)
        async with member(embedded.nameserver, seen, group="g", subscriptions=["T"]) as other:
            await share(one, other)
            await one.stop()
            await share(other)


@pytest.mark.slow
async def test_rmqd_orderly_members_hand_over_their_locks(embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]) -> None:
    """Messages that arrive meanwhile stay in order."""
    producer, _ = peers
    seen = Seen()
    options: dict[str, Any] = {"group": "g", "subscriptions": ["T"], "consume_mode": "orderly"}
    async with member(embedded.nameserver, seen, **options) as one:
        await eventually(lambda: len(one.owned()) == 4, "one has all queues")
        async with member(embedded.nameserver, seen, **options) as other:
            await eventually(lambda: len(one.owned()) == len(other.owned()) == 2, "both members share the queues")
            for number in range(40):
                await producer.send("T", queue_id=number % 4, KEYS=str(number))
            await eventually(lambda: len(seen.keys) == 40, "all messages are handled")
            assert embedded.broker.locks.has_any("g")
            await other.stop()
        await eventually(lambda: len(one.owned()) == 4, "one has all queues again")
        await one.stop()
    assert not embedded.broker.locks.has_any("g")
    for queue in range(4):
        assert [key for key in seen.keys if int(key) % 4 == queue] == [str(number) for number in range(queue, 40, 4)]
