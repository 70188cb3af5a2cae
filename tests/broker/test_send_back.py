"""Messages sent back to the embedded broker, as in 5.5.0: retries, delay levels and dead letters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, TopicConfig
from rmqd.wire.command import RemotingCommand
from rmqd.wire.messages.encode import StoredMessage
from rmqd.wire.messages.message_id import offset_message_id, parse_host
from tests.broker.peer import Peer
from tests.broker.records import BORN_TIMESTAMP, records
from tests.clock import ManualClock

SEND_BACK = 36
MESSAGE = StoredMessage(
    topic="T",
    body=b"body",
    queue_id=2,
    flag=5,
    born_timestamp=BORN_TIMESTAMP,
    born_host="192.0.2.7:4711",
    properties={"UNIQ_KEY": "u", "TAGS": "a", "WAIT": "true"},
)
LEVEL_1_SECONDS = 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def offset(embedded: EmbeddedRocketMQ) -> int:
    """Store MESSAGE, and return its commit log offset."""
    embedded.broker.store.put(replace(MESSAGE, body=b"another"))
    return embedded.broker.store.put(MESSAGE).commit_log_offset


async def send_back(peer: Peer, **changed: Any) -> RemotingCommand:
    values = {"group": "g", "delayLevel": 0, "originMsgId": "o", "originTopic": "T", "unitMode": "false"}
    fields = {key: str(value) for key, value in (values | changed).items() if value is not None}
    return await peer.call(SEND_BACK, fields)


async def test_a_message_is_stored_in_the_retry_topic_after_its_delay(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock, offset: int
) -> None:
    broker = embedded.broker

    reply = await send_back(peer, offset=offset, delayLevel=1)

    assert (reply.code, reply.remark, reply.ext_fields) == (0, None, {})
    (waiting,) = records(broker.store, "SCHEDULE_TOPIC_XXXX", 0)
    expected = {
        "UNIQ_KEY": "u",
        "TAGS": "a",
        "WAIT": "false",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": offset_message_id(parse_host(broker.address), offset),
        "DELAY": "1",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0",
    }
    assert waiting.properties == expected
    clock.turn(LEVEL_1_SECONDS)
    broker.schedule.wake()
    (again,) = records(broker.store, "%RETRY%g")
    assert again.properties == expected
    assert (again.body, again.flag, again.reconsume_times) == (b"body", 5, 1)
    assert (again.born_timestamp, again.born_host) == (BORN_TIMESTAMP, "192.0.2.7:4711")
    assert broker.topics.get("%RETRY%g") == TopicConfig(
        topic_name="%RETRY%g", read_queue_nums=1, write_queue_nums=1, perm=6
    )


@pytest.mark.parametrize(
    ("asked", "times", "level"),
    [
        pytest.param(0, 0, 3, id="the broker chooses"),
        pytest.param(0, 2, 5, id="longer each time"),
        pytest.param(7, 2, 7, id="as asked"),
        pytest.param(30, 0, 18, id="not beyond the last"),
        pytest.param(0, 99, 18, id="nor by many attempts"),
    ],
)
async def test_the_delay_level_depends_on_the_request_and_the_reconsume_times(
    embedded: EmbeddedRocketMQ, peer: Peer, asked: int, times: int, level: int
) -> None:
    store = embedded.broker.store
    at = store.put(replace(MESSAGE, reconsume_times=times)).commit_log_offset

    await send_back(peer, offset=at, delayLevel=asked, maxReconsumeTimes=100)

    (waiting,) = records(store, "SCHEDULE_TOPIC_XXXX", level - 1)
    assert waiting.properties["DELAY"] == str(level)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"delayLevel": -1}, id="asked for"),
        pytest.param({"maxReconsumeTimes": 0}, id="by the request's limit"),
        pytest.param({"maxReconsumeTimes": -1}, id="also a negative one"),
        pytest.param({"group": "strict"}, id="by the group's limit"),
    ],
)
async def test_level_minus_1_or_a_reached_limit_makes_a_dead_letter(
    embedded: EmbeddedRocketMQ, peer: Peer, offset: int, changed: dict[str, Any]
) -> None:
    broker = embedded.broker
    broker.groups.put(SubscriptionGroupConfig(group_name="strict", retry_max_times=0, retry_queue_nums=1000))
    topic = f"%DLQ%{changed.get('group', 'g')}"

    assert (await send_back(peer, **{"offset": offset} | changed)).code == 0

    (dead,) = records(broker.store, topic)
    assert dead.reconsume_times == 1
    assert dead.properties == {
        "UNIQ_KEY": "u",
        "TAGS": "a",
        "WAIT": "false",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": offset_message_id(parse_host(broker.address), offset),
        "DELAY": "0",
    }
    assert broker.topics.get(topic) == TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1, perm=6)
