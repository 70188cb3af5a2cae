"""Who is in a group, and who is told of it: as recorded from RocketMQ 5.5.0.

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


async def test_other_client_id_on_the_same_connection_takes_its_place(peers: tuple[Peer, Peer]) -> None:
    one, _ = peers
    await beat(one, "first", consumer())
    await heard(one)

    await beat(one, "second", consumer())

    assert await heard(one) == []
    assert ids(await members(one)) == ("second",)


async def test_group_may_switch_the_notices_off(embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]) -> None:
    """Those of joins and good-byes: the end of a connection is told all the same, as RocketMQ does."""
    one, other = peers
    embedded.broker.groups.put(SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=False))
    await beat(one, "one", consumer())
    await beat(other, "other", consumer())
    await other.call(UNREGISTER, {"clientID": "other", "consumerGroup": "g"})
    await beat(other, "other", consumer())
    assert await heard(one) == []

    await other.close()

    assert (await one.request(40)).ext_fields == {"consumerGroup": "g"}


async def test_broker_may_switch_the_notices_off(embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    broker = embedded.broker
    broker.change_settings(broker.settings.changed({"notifyConsumerIdsChangedEnable": "false"}))

    await beat(one, "one", consumer())
    await beat(other, "other", consumer())

    assert await heard(one) == []


async def test_group_that_may_not_be_made_is_passed_over(embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]) -> None:
    """In silence: the heartbeat succeeds for the others."""
    one, _ = peers
    broker = embedded.broker
    broker.groups.find("known")
    broker.change_settings(broker.settings.changed({"autoCreateSubscriptionGroup": "false"}))

    reply = await beat(one, "one", consumer("new"), consumer("a b"), consumer("known"), consumer("CID_RMQ_SYS_own"))

    assert reply.code == 0
    assert [info.group for info in broker.consumers.all()] == ["known", "CID_RMQ_SYS_own"]
    assert broker.topics.get("%RETRY%new") is None


@pytest.mark.slow
async def test_rmqds_own_members_share_the_queues(embedded: EmbeddedRocketMQ) -> None:
    """Each notice is a rebalance: nobody waits for the next one by the clock, not when a member dies either."""
    seen = Seen()

    async def share(*members: Member) -> None:
        whole = {("T", queue) for queue in range(4)}
        await eventually(
            lambda: (
                [len(one.owned()) for one in members] == [4 // len(members)] * len(members)
                and set().union(*(one.owned() for one in members)) == whole
            ),
            f"{len(members)} share the queues",
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
async def test_rmqds_own_orderly_members_hand_their_locks_over(
    embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]
) -> None:
    """In order, queue by queue, while messages come."""
    producer, _ = peers
    seen = Seen()
    options: dict[str, Any] = {"group": "g", "subscriptions": ["T"], "consume_mode": "orderly"}
    async with member(embedded.nameserver, seen, **options) as one:
        await eventually(lambda: len(one.owned()) == 4, "one has all queues")
        async with member(embedded.nameserver, seen, **options) as other:
            await eventually(lambda: len(one.owned()) == len(other.owned()) == 2, "they share the queues")
            for number in range(40):
                await producer.send("T", queue_id=number % 4, KEYS=str(number))
            await eventually(lambda: len(seen.keys) == 40, "all is handled")
            assert embedded.broker.locks.has_any("g")
            await other.stop()
        await eventually(lambda: len(one.owned()) == 4, "one has all queues again")
        await one.stop()
    assert not embedded.broker.locks.has_any("g")
    for queue in range(4):
        assert [key for key in seen.keys if int(key) % 4 == queue] == [str(number) for number in range(queue, 40, 4)]
