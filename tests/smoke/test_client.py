"""The client with a real RocketMQ, which can differ from a scripted peer."""

from __future__ import annotations

import asyncio

import pytest

from rmqd.client.api import admin_requests as admin
from rmqd.client.api import group_requests as group_api
from rmqd.client.api import group_requests as lock
from rmqd.client.api import offset_requests as offset
from rmqd.client.api.send_requests import send_message_back
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.errors.broker_errors import BrokerFailureError, SubscriptionParseError
from rmqd.wire.bodies.heartbeat_data import sql_subscription
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.message_id import parse_offset_message_id
from rmqd.wire.topics import retry_topic
from tests.client.members import Member
from tests.client.running import running
from tests.rocketmq import release
from tests.rocketmq.cluster import RealCluster
from tests.waiting import eventually

pytestmark = pytest.mark.rocketmq

of_5 = pytest.mark.skipif(release.is_4(), reason="asks for what only a RocketMQ 5 answers, or answers so")


async def test_a_member_joins_is_notified_of_others_and_leaves(rocketmq: RealCluster, topic: str, group: str) -> None:
    """The broker lists a member after its heartbeat until it unregisters, and notifies it of other members."""
    options = ClientOptions(nameservers=(rocketmq.nameserver,))
    first, second = ClientInstance(options), ClientInstance(options)
    member, other = Member(group, topic), Member(group, topic)
    async with running(first.run()), running(second.run()):
        first.register(member)
        route = await first.routes.refresh(topic)
        broker = first.routes.master(route.queue_datas[0].broker_name)
        assert broker is not None
        assert await first.heartbeat.send_heartbeats() == {broker: None}
        assert await group_api.get_consumer_list(first.remoting, broker, group) == [first.client_id]

        member.ids_changed.clear()
        second.register(other)
        async with asyncio.timeout(5):
            await member.ids_changed.wait()
        members = await group_api.get_consumer_list(first.remoting, broker, group)
        assert sorted(members) == sorted([first.client_id, second.client_id])
        connection = await group_api.consumer_connection(first.remoting, broker, group)
        assert {c.client_id for c in connection.connection_set} == set(members)
        assert set(connection.subscription_table) == {topic, retry_topic(group)}

        member.ids_changed.clear()
        await second.unregister(group)
        assert await group_api.get_consumer_list(first.remoting, broker, group) == [first.client_id]
        async with asyncio.timeout(5):
            await member.ids_changed.wait()
        # the heartbeat created the retry topic, and the client requests its route automatically
        await eventually(lambda: first.routes.queues(retry_topic(group)), "the client has the retry topic's route")


@of_5
async def test_messages_and_offsets(rocketmq: RealCluster, topic: str, group: str) -> None:
    """A sent message is stored with its tags, keys and properties, and has the offsets that the broker reports."""
    client = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,)))
    async with running(client.run()):
        message = OutgoingMessage(topic, b"body", tags="paid", keys="k1 k2", properties={"colour": "red"})
        sent = await client.producer.send(message)
        broker = client.routes.master(sent.queue.broker_name)
        assert broker is not None
        place = parse_offset_message_id(sent.offset_msg_id)
        record = await admin.view_message(client.remoting, broker, place.commit_log_offset)
        assert record is not None
        (stored,) = decode_messages(record, sent.queue).messages
        assert (stored.body, stored.tags, stored.keys) == (b"body", "paid", "k1 k2")
        assert (stored.msg_id, stored.properties["colour"]) == (sent.msg_id, "red")
        assert await admin.view_message(client.remoting, broker, place.commit_log_offset + 1) is None
        assert decode_messages(await admin.query_message(client.remoting, broker, topic, "k2"), sent.queue).messages
        assert await admin.query_message(client.remoting, broker, topic, "nothing") == b""

        assert await offset.get_max_offset(client.remoting, broker, sent.queue) == sent.queue_offset + 1
        assert await offset.get_min_offset(client.remoting, broker, sent.queue) == 0
        assert await offset.earliest_store_time(client.remoting, broker, sent.queue) == stored.store_timestamp
        found = await offset.search_offset(client.remoting, broker, sent.queue, stored.store_timestamp)
        assert found == sent.queue_offset
        stats = await admin.topic_stats(client.remoting, broker, topic)
        assert stats.offset_table[sent.queue].max_offset == sent.queue_offset + 1

        client.register(Member(group, topic))
        await client.heartbeat.send_heartbeat_to(broker)
        assert await offset.query_consumer_offset(client.remoting, broker, group, sent.queue) is None
        await offset.update_consumer_offset(client.remoting, broker, group, sent.queue, 1)
        assert await offset.query_consumer_offset(client.remoting, broker, group, sent.queue) == 1
        lag = (await admin.consume_stats(client.remoting, broker, group)).offset_table[sent.queue]
        assert (lag.broker_offset, lag.consumer_offset) == (sent.queue_offset + 1, 1)
        reset = await admin.reset_offset(client.remoting, broker, group, topic, 0, queue_id=sent.queue.queue_id)
        assert reset == {sent.queue: 0}

        await send_message_back(
            client.remoting, broker, group, place.commit_log_offset, 1, broker_name="broker-a", max_reconsume_times=16
        )
        retry = MessageQueue(retry_topic(group), sent.queue.broker_name, 0)
        await eventually(lambda: offset.get_max_offset(client.remoting, broker, retry), "it is stored again", 10)


@of_5
async def test_locks_settings_and_sql(rocketmq: RealCluster, topic: str, group: str) -> None:
    """A lock belongs to one client, a group's settings can be queried, and the broker checks SQL."""
    client = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,)))
    async with running(client.run()):
        await client.routes.refresh(topic)
        queue = client.routes.queues(topic)[0]
        broker = client.routes.master(queue.broker_name)
        assert broker is not None
        assert await lock.lock_batch(client.remoting, broker, group, "a", [queue]) == {queue}
        assert await lock.lock_batch(client.remoting, broker, group, "b", [queue]) == frozenset()
        await lock.unlock_batch(client.remoting, broker, group, "a", [queue])
        assert await lock.lock_batch(client.remoting, broker, group, "b", [queue]) == {queue}

        client.register(Member(group, topic))
        await client.heartbeat.send_heartbeat_to(broker)
        settings = await group_api.subscription_group(client.remoting, broker, group)
        assert settings.retry_max_times == 16
        good = sql_subscription(topic, "a > 1", 1)
        await group_api.check_client_config(client.remoting, broker, client.client_id, group, good)
        bad = sql_subscription(topic, "a >", 1)
        with pytest.raises((SubscriptionParseError, BrokerFailureError)):
            await group_api.check_client_config(client.remoting, broker, client.client_id, group, bad)


@of_5
async def test_sending_to_a_missing_topic_creates_it(rocketmq: RealCluster, topic: str) -> None:
    client = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,)))
    async with running(client.run()):
        new_topic = f"{topic}_new"
        sent = await client.producer.send(OutgoingMessage(new_topic, b"first"))
        assert sent.queue.topic == new_topic
        broker = client.routes.master(sent.queue.broker_name)
        assert broker is not None
        assert (await admin.topic_config(client.remoting, broker, new_topic)).write_queue_nums == 4
        await client.routes.refresh(new_topic)
        assert len(client.routes.writable_queues(new_topic)) == 4
