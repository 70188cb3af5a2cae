"""Messages sent back to the embedded broker, as in 5.5.0: retries, dead letters, permissions and errors.

The core of these tests is in tests/broker/test_send_back.py.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, TopicConfig
from rmqd.wire.messages.properties import CompressionType
from tests.broker.peer import Peer
from tests.broker.records import records
from tests.broker.test_send_back import LEVEL_1_SECONDS, MESSAGE, clock, offset, send_back
from tests.clock import ManualClock
from tests.wire.compressing import compressed_flag

__all__ = ["clock", "offset"]


FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


async def test_a_dead_letter_keeps_the_ipv6_address_of_the_producer(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    host = "[2001:0db8:0000:0000:0000:0000:0000:0001]:4711"
    at = embedded.broker.store.put(replace(MESSAGE, born_host=host)).commit_log_offset

    await send_back(peer, offset=at, delayLevel=-1)

    (dead,) = records(embedded.broker.store, "%DLQ%g")
    assert dead.born_host == host


async def test_the_message_of_a_group_without_retry_queues_is_discarded(
    embedded: EmbeddedRocketMQ, peer: Peer, offset: int
) -> None:
    """The response is a success."""
    embedded.broker.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=0))
    end = embedded.broker.store.end

    assert (await send_back(peer, offset=offset, delayLevel=-1)).code == 0
    assert embedded.broker.store.end == end
    assert embedded.broker.topics.get("%RETRY%g") is None


async def test_retries_use_all_retry_queues_of_the_group(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock, offset: int
) -> None:
    broker = embedded.broker
    broker.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=3))
    for _ in range(60):
        await send_back(peer, offset=offset, delayLevel=1, unitMode="true")
    clock.turn(LEVEL_1_SECONDS)
    broker.schedule.wake()

    assert broker.store.queues("%RETRY%g").keys() == {0, 1, 2}
    config = broker.topics.get("%RETRY%g")
    assert config is not None
    assert (config.write_queue_nums, config.topic_sys_flag) == (3, 2)


@pytest.mark.parametrize("group", ["g?", "g" * 121])
async def test_a_group_with_an_invalid_name_is_rejected(peer: Peer, offset: int, group: str) -> None:
    reply = await send_back(peer, offset=offset, group=group)

    assert (reply.code, reply.remark) == (26, f"subscription group not exist, {group} {FAQ}")


async def test_the_permissions_of_the_broker_and_the_retry_topic_are_checked(
    embedded: EmbeddedRocketMQ, peer: Peer, offset: int
) -> None:
    """The permission of the dead-letter topic is not."""
    broker = embedded.broker
    broker.topics.put(TopicConfig(topic_name="%RETRY%closed", perm=4))
    broker.topics.put(TopicConfig(topic_name="%DLQ%g", perm=4))

    assert (await send_back(peer, offset=offset, delayLevel=-1)).code == 0
    reply = await send_back(peer, offset=offset, group="closed")
    assert (reply.code, reply.remark) == (16, "the topic[%RETRY%closed] sending message is forbidden")
    broker.change_settings(replace(broker.settings, brokerPermission=4))
    reply = await send_back(peer, offset=offset)
    assert (reply.code, reply.remark) == (16, "the broker[127.0.0.1] sending message is forbidden")


async def test_a_second_retry_keeps_the_original_topic_and_id(
    embedded: EmbeddedRocketMQ, peer: Peer, offset: int
) -> None:
    store = embedded.broker.store
    origin = {"RETRY_TOPIC": "First", "ORIGIN_MESSAGE_ID": "FIRST"}
    again = store.put(replace(MESSAGE, topic="%RETRY%g", queue_id=0, reconsume_times=4, properties=origin))

    await send_back(peer, offset=again.commit_log_offset)

    (waiting,) = records(store, "SCHEDULE_TOPIC_XXXX", 6)  # 3 + 4 times, counted from 1
    assert waiting.reconsume_times == 5
    assert origin.items() <= waiting.properties.items()


async def test_the_retry_limit_of_the_client_replaces_the_limit_of_the_group(
    embedded: EmbeddedRocketMQ, peer: Peer, offset: int
) -> None:
    embedded.broker.groups.put(SubscriptionGroupConfig(group_name="strict", retry_max_times=0))

    await send_back(peer, group="strict", offset=offset, maxReconsumeTimes=5)

    assert not records(embedded.broker.store, "%DLQ%strict")
    assert len(records(embedded.broker.store, "SCHEDULE_TOPIC_XXXX", 2)) == 1


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(zlib.compress(b"x" * 100), id="compressed"),
        pytest.param(b"no stream", id="said to be compressed"),
    ],
)
async def test_the_body_is_not_changed(embedded: EmbeddedRocketMQ, peer: Peer, stored: bytes) -> None:
    flag = compressed_flag(CompressionType.ZLIB)
    at = embedded.broker.store.put(replace(MESSAGE, body=stored, sys_flag=flag)).commit_log_offset

    await send_back(peer, offset=at, delayLevel=-1)

    (dead,) = records(embedded.broker.store, "%DLQ%g")
    assert (dead.body, dead.sys_flag) == (stored, flag)


@pytest.mark.parametrize("beside", [1, 10**9])
async def test_an_offset_without_a_message_is_an_error(peer: Peer, offset: int, beside: int) -> None:
    reply = await send_back(peer, offset=offset + beside)

    assert (reply.code, reply.remark) == (1, f"look message by offset failed, {offset + beside}")


@pytest.mark.parametrize("missing", ["group", "offset", "delayLevel"])
async def test_a_request_without_a_required_field_is_rejected(peer: Peer, offset: int, missing: str) -> None:
    changed: dict[str, Any] = {"offset": offset} | {missing: None}
    assert (await send_back(peer, **changed)).code == 1
