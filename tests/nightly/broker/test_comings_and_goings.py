"""Members of a group, and the notifications of member changes, as recorded from RocketMQ 5.5.0."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, TopicConfig
from rmqd.wire.bodies.group_bodies import GetConsumerListByGroupResponseBody
from rmqd.wire.bodies.heartbeat_data import ConsumerData, ConsumeType, MessageModel
from rmqd.wire.command import RemotingCommand
from tests.broker.beats import UNREGISTER, beat, consumer, heard, members
from tests.broker.peer import Peer, connected


@pytest.fixture
async def peers(embedded: EmbeddedRocketMQ) -> AsyncIterator[tuple[Peer, Peer]]:
    async with connected(embedded.broker.address) as one, connected(embedded.broker.address) as other:
        yield one, other


def ids(reply: RemotingCommand) -> tuple[str, ...]:
    return GetConsumerListByGroupResponseBody.from_json(reply.body).consumer_id_list


async def test_a_join_notifies_all_members_before_its_response(peers: tuple[Peer, Peer]) -> None:
    """The joining member is notified too, so that its first rebalance sees itself."""
    one, other = peers
    reply = await beat(one, "one", consumer())
    assert [request.code for request in one.requests] == [40]
    assert reply.ext_fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert await heard(one) == ["g"]

    await beat(other, "other", consumer())

    assert (await heard(one), await heard(other)) == (["g"], ["g"])
    assert ids(await members(one)) == ("one", "other")


async def test_a_heartbeat_notifies_only_if_members_or_topics_change(peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    await beat(one, "one", consumer())
    await beat(other, "other", consumer())
    await heard(one)

    await beat(one, "one", consumer())
    await beat(one, "one", consumer(sub_version=2))
    assert await heard(one) == []

    await beat(one, "one", consumer("g", "T", "T2"))
    assert await heard(one) == ["g"]
    await beat(other, "other", consumer())
    assert await heard(one) == ["g"], "the other member's topics replace those of the first member"


async def test_the_last_heartbeat_applies_to_the_whole_group(
    embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]
) -> None:
    one, other = peers
    await beat(one, "one", consumer("g", "T", "T2", sub_version=5))
    await beat(other, "other", consumer("g", "T", sub_version=3, consume_type=ConsumeType.ACTIVELY))

    info = embedded.broker.consumers.get("g")
    assert info is not None
    assert {topic: one.sub_version for topic, one in info.subscriptions.items()} == {"T": 5}
    assert info.consume_type == ConsumeType.ACTIVELY


async def test_unregistering_notifies_the_other_members(embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]) -> None:
    """Producers get no notifications."""
    one, other = peers
    await beat(one, "one", consumer(), producers=["p"])
    await beat(other, "other", consumer())
    await heard(one)
    await heard(other)

    assert (await one.call(UNREGISTER, {"clientID": "one", "consumerGroup": "g", "producerGroup": "p"})).code == 0
    assert (await heard(one), await heard(other)) == ([], ["g"])
    assert embedded.broker.producers.all() == {}

    await one.call(UNREGISTER, {"clientID": "one", "consumerGroup": "g"})
    assert await heard(other) == ["g"], "members are notified even if the client was already unregistered"

    await other.call(UNREGISTER, {"clientID": "other", "consumerGroup": "g"})
    gone = await members(one)
    assert (gone.code, gone.remark) == (1, "no consumer for this group, g")


async def test_a_lost_connection_notifies_the_other_members(
    embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]
) -> None:
    """It also removes producers. A client with two connections is listed twice until one of them ends."""
    one, other = peers
    await beat(one, "same", consumer(), producers=["p"])
    await beat(other, "same", consumer(), producers=["p"])
    assert ids(await members(other)) == ("same", "same")
    await heard(other)

    await one.close()

    assert (await other.request(40)).ext_fields == {"consumerGroup": "g"}
    assert ids(await members(other)) == ("same",)
    assert [client.channel.closed for client in embedded.broker.producers.get("p")] == [False]


async def test_broadcasting_members_are_not_notified(peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    broadcasting = consumer(message_model=MessageModel.BROADCASTING)
    await beat(one, "one", broadcasting)
    await beat(other, "other", broadcasting)
    await other.call(UNREGISTER, {"clientID": "other", "consumerGroup": "g"})

    assert await heard(one) == []


async def test_a_v2_heartbeat_may_omit_its_subscriptions(embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]) -> None:
    """The response says whether the group's last heartbeat was different."""
    one, other = peers

    async def changed(peer: Peer, client_id: str, fingerprint: int, *, without_sub: bool = False) -> str:
        data = ConsumerData("g", ()) if without_sub else consumer()
        reply = await beat(peer, client_id, data, fingerprint=fingerprint, without_sub=without_sub)
        return reply.ext_fields["IS_SUB_CHANGE"]

    assert await changed(one, "one", 7) == "false"
    assert await changed(one, "one", 8) == "true"
    await heard(one)
    assert await changed(one, "one", 8, without_sub=True) == "false"
    assert await heard(one) == []
    assert await changed(other, "other", 8, without_sub=True) == "false"
    assert await heard(one) == ["g"]
    info = embedded.broker.consumers.get("g")
    assert info is not None
    assert list(info.subscriptions) == ["T"]
    assert await changed(one, "one", 0) == "true"
    assert await changed(one, "one", 8) == "true"


@pytest.mark.parametrize("model", [MessageModel.CLUSTERING, MessageModel.BROADCASTING])
async def test_the_retry_topic_is_created_for_every_group(
    embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer], model: MessageModel
) -> None:
    """The group's configuration sets the number of queues. It is an order topic if a subscribed topic is one."""
    one, _ = peers
    broker = embedded.broker
    broker.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=3))
    broker.topics.put(TopicConfig(topic_name="ordered", order=True))
    await beat(one, "one", consumer("g", "ordered", message_model=model, unit_mode=True), consumer("h"))

    assert broker.topics.get("%RETRY%g") == TopicConfig(
        topic_name="%RETRY%g", read_queue_nums=3, write_queue_nums=3, order=True, topic_sys_flag=2
    )
    assert broker.topics.get("%RETRY%h") == TopicConfig(topic_name="%RETRY%h", read_queue_nums=1, write_queue_nums=1)


async def test_silent_clients_are_removed_and_disconnected(
    embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]
) -> None:
    """Like RocketMQ, the broker does not notify the other members. They notice at their next rebalance."""
    one, other = peers
    broker = embedded.broker
    await beat(one, "one", consumer(), producers=["p"])
    before = broker.now()
    await beat(other, "other", consumer())
    await heard(other)

    broker.close_expired_clients(before)

    await one.closed()
    assert ids(await members(other)) == ("other",)
    assert await heard(other) == []
    assert broker.producers.get("p") == []


async def test_a_client_with_heartbeats_is_not_removed(embedded: EmbeddedRocketMQ, peers: tuple[Peer, Peer]) -> None:
    one, _ = peers
    await beat(one, "one", consumer(), producers=["p"])
    before = embedded.broker.now()
    await beat(one, "one", consumer(), producers=["p"])

    embedded.broker.close_expired_clients(before)

    assert ids(await members(one)) == ("one",)
    assert len(embedded.broker.producers.get("p")) == 1


async def test_a_broker_task_removes_silent_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is a setting."""
    monkeypatch.setattr("rmqd.broker.controller.SCAN_SECONDS", 0.01)
    settings = BrokerSettings().changed({"channelExpiredTimeout": "0"})
    async with (
        embedded_rocketmq(EmbeddedOptions(settings=settings)) as embedded,
        connected(embedded.broker.address) as peer,
    ):
        await beat(peer, "one", consumer())
        await peer.closed()
        assert embedded.broker.consumers.get("g") is None
