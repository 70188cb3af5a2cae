"""Sends to the embedded broker: invalid sends, retries and dead letters. Codes and remarks are 5.5.0's.

The core of these tests is in tests/broker/test_send.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, TopicConfig
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import encode_batch
from tests.broker.peer import Peer
from tests.broker.records import letters, records
from tests.broker.stores import bodies
from tests.broker.test_send import BATCH, FAQ, ILLEGAL, MEMBERS, PUT_BY_BROKER, SEND, SEND_V2, address, refused

LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


async def test_long_field_names_have_the_same_effect(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    fields = letters(properties={"UNIQ_KEY": "U1", "TAGS": "a"}, e=1, j=2)

    await peer.call(SEND_V2, fields, b"1")
    reply = await peer.call(SEND, {LONG_NAMES[letter]: value for letter, value in fields.items()}, b"1")

    by_letters, by_names = records(embedded.broker.store, "T", 1)
    placed = (by_letters.queue_offset, by_letters.commit_log_offset, by_letters.store_timestamp)
    assert by_letters == replace(
        by_names, queue_offset=placed[0], commit_log_offset=placed[1], store_timestamp=placed[2]
    )
    assert reply.ext_fields["queueOffset"] == "1"


async def test_the_brokers_own_properties_cannot_be_forged(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    forged = {"UNIQ_KEY": "u", "POP_CK": "x", "MSG_REGION": "here", "TRACE_ON": "false", "CLUSTER": "c"}

    await peer.call(SEND_V2, letters(properties=forged), b"1")

    assert records(embedded.broker.store, "T")[0].properties == {"UNIQ_KEY": "u"} | PUT_BY_BROKER


async def test_topic_creation_can_be_switched_off(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """Until the next start, as in RocketMQ, even if it is switched on again. Retry topics are created anyway."""
    broker = embedded.broker
    broker.change_settings(replace(broker.settings, autoCreateTopicEnable=False))
    assert (await peer.call(SEND_V2, letters("New"), b"1")).code == 17
    assert (await peer.call(SEND_V2, letters("%RETRY%g"), b"1")).code == 0
    broker.change_settings(replace(broker.settings, autoCreateTopicEnable=True))
    assert (await peer.call(SEND_V2, letters("New"), b"1")).code == 17

    assert broker.topics.get("%RETRY%g") == TopicConfig(
        topic_name="%RETRY%g", read_queue_nums=1, write_queue_nums=1, perm=6
    )


async def test_the_template_topic_is_missing_if_topic_creation_is_off() -> None:
    settings = BrokerSettings(autoCreateTopicEnable=False)
    async with embedded_rocketmq(EmbeddedOptions(settings=settings)) as embedded:
        assert embedded.broker.topics.get("TBW102") is None


WRONG_NAMES = [
    ("a?b", "The specified topic: a?b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
    (" ", "The specified topic is blank."),
    ("", "The specified topic is blank."),
    ("x" * 128, f"The specified topic: {'x' * 128}, is longer than topic max length: 127"),
    (
        "%DLQ%" + "x" * 251,
        f"The specified topic is DLQ or Retry topic: %DLQ%{'x' * 251}, and it's longer than topic max length: 255",
    ),
]


@pytest.mark.parametrize(("topic", "remark"), WRONG_NAMES, ids=range(len(WRONG_NAMES)))
async def test_invalid_topic_names_are_rejected(peer: Peer, topic: str, remark: str) -> None:
    assert refused(await peer.call(SEND_V2, letters(topic), b"1")) == (29, remark)


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "SELF_TEST_TOPIC"])
async def test_sends_to_system_topics_are_rejected(peer: Peer, topic: str) -> None:
    assert refused(await peer.call(SEND_V2, letters(topic), b"1")) == (
        16,
        f"Sending message to topic[{topic}] is forbidden.",
    )


async def test_a_send_to_a_missing_queue_is_rejected(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    reply = await peer.call(SEND_V2, letters(e=4), b"1")

    assert refused(reply) == (
        29,
        "request queueId[4] is illegal, TopicConfig [topicName=T, readQueueNums=4, writeQueueNums=4, perm=RW-, "
        f"topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={{}}] Producer: {address(embedded)}",
    )


async def test_the_maximum_body_size_is_a_setting(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    embedded.broker.change_settings(replace(embedded.broker.settings, maxMessageSize=10))

    assert (await peer.call(SEND_V2, letters(), b"x" * 10)).code == 0
    assert refused(await peer.call(SEND_V2, letters(), b"x" * 11)) == (13, ILLEGAL.replace("4194304", "10"))


@pytest.mark.parametrize(
    "changed",
    [
        {"e": None},
        {"b": None},
        {"g": None},
        {"h": "x"},
        {"b": "New", "c": None},
        {"b": "New", "d": "many"},
        {"i": "DELAY\x01soon\x02"},
    ],
)
async def test_invalid_headers_are_rejected(embedded: EmbeddedRocketMQ, peer: Peer, changed: dict[str, Any]) -> None:
    assert (await peer.call(SEND_V2, letters(**changed), b"1")).code == 1
    assert embedded.broker.store.end == 0


async def test_a_send_to_a_topic_without_queues_is_rejected(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    embedded.broker.topics.put(TopicConfig(topic_name="None", read_queue_nums=0, write_queue_nums=0))

    assert (await peer.call(SEND_V2, letters("None"), b"1")).code == 29
    assert (await peer.call(SEND_V2, letters("None", e=-1), b"1")).code == 1


async def test_a_broker_without_write_permission_rejects_only_order_topics(
    embedded: EmbeddedRocketMQ, peer: Peer
) -> None:
    """It accepts other sends, because producers see the permission in the route."""
    broker = embedded.broker
    broker.topics.put(TopicConfig(topic_name="Order", order=True))
    broker.topics.put(TopicConfig(topic_name="ReadOnly", perm=4))
    broker.change_settings(replace(broker.settings, brokerPermission=4))

    assert (await peer.call(SEND_V2, letters(), b"1")).code == 0
    assert (await peer.call(SEND_V2, letters("ReadOnly"), b"1")).code == 0
    assert refused(await peer.call(SEND_V2, letters("Order"), b"1")) == (
        16,
        "the broker[127.0.0.1] sending message is forbidden",
    )


async def test_a_batch_without_a_unique_key_has_no_transaction_id(peer: Peer) -> None:
    assert "transactionId" not in (await peer.call(BATCH, letters(m="true"), encode_batch(MEMBERS))).ext_fields


REFUSED_BATCHES = [
    (letters("%RETRY%g", m="true"), 13, "batch request does not support retry group %RETRY%g"),
    (letters("%DLQ%" + "x" * 150, m="true"), 13, "message topic length too long 155"),
    (letters(properties={"DELAY": "3"}, m="true"), 13, ILLEGAL),
    (letters(f=4, m="true"), 13, ILLEGAL),
    (letters(f=0x80, m="true"), 13, ILLEGAL),
    # RocketMQ acknowledges this batch, but never delivers it
    (letters(properties={"TIMER_DELAY_SEC": "3"}, m="true"), 13, ILLEGAL),
]


@pytest.mark.parametrize(("fields", "code", "remark"), REFUSED_BATCHES, ids=range(len(REFUSED_BATCHES)))
async def test_invalid_batches_are_rejected(
    embedded: EmbeddedRocketMQ, peer: Peer, fields: dict[str, str], code: int, remark: str
) -> None:
    assert refused(await peer.call(BATCH, fields, encode_batch(MEMBERS))) == (code, remark)
    assert embedded.broker.store.end == 0


async def test_the_retry_limit_of_the_client_replaces_the_limit_of_the_group(
    embedded: EmbeddedRocketMQ, peer: Peer
) -> None:
    for limit in (3, 5):
        await peer.call(SEND_V2, letters("%RETRY%g", j=4, l=limit), b"%d" % limit)

    assert bodies(embedded.broker.store, "%RETRY%g") == ["5"]
    assert bodies(embedded.broker.store, "%DLQ%g") == ["3"]


async def test_a_retry_above_the_limit_of_the_group_is_a_dead_letter(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    embedded.broker.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=1))
    for times in (1, 2):
        await peer.call(SEND_V2, letters("%RETRY%g", j=times), b"%d" % times)

    assert bodies(embedded.broker.store, "%RETRY%g") == ["1"]
    assert bodies(embedded.broker.store, "%DLQ%g") == ["2"]


async def test_a_retry_of_a_group_that_holds_locks_is_a_dead_letter(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """An orderly group retries in place, and sends only dead letters."""
    locks, queue = embedded.broker.locks, MessageQueue("T", "broker-a", 0)
    locks.lock("g", "client", [queue])
    await peer.call(SEND_V2, letters("%RETRY%g", j=0, l=3), b"locked")
    locks.unlock("g", "client", [queue])
    await peer.call(SEND_V2, letters("%RETRY%g", j=0, l=3), b"unlocked")

    assert bodies(embedded.broker.store, "%DLQ%g") == ["locked"]
    assert bodies(embedded.broker.store, "%RETRY%g") == ["unlocked"]


async def test_a_retry_of_a_group_with_an_invalid_name_is_rejected(peer: Peer) -> None:
    group = "g" * 121

    assert refused(await peer.call(SEND_V2, letters(f"%RETRY%{group}"), b"1")) == (
        26,
        f"subscription group not exist, {group} {FAQ}",
    )


async def test_the_broker_selects_the_queue_if_it_is_negative(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    queues = {(await peer.call(SEND_V2, letters(e=-1), b"1")).ext_fields["queueId"] for _ in range(200)}

    assert queues == {"0", "1", "2", "3"}


@pytest.mark.parametrize("default_topic", ["T", "nothing"])
async def test_a_topic_is_created_only_from_the_template_topic(peer: Peer, default_topic: str) -> None:
    reply = await peer.call(SEND_V2, letters("New", c=default_topic), b"1")

    assert refused(reply) == (17, f"topic[New] not exist, apply first please!{FAQ}")


@pytest.mark.parametrize(
    ("changed", "size"),
    [
        pytest.param({}, 4 * 1024 * 1024 + 1, id="body"),
        pytest.param({"i": "A\x01" + "y" * 32760 + "\x02"}, 1, id="properties, with what the broker adds"),
        pytest.param({"b": "%DLQ%" + "x" * 150}, 1, id="topic"),
        pytest.param({"f": 0x80}, 1, id="inner batch"),
        pytest.param({"i": "INNER_NUM\x012\x02"}, 1, id="said to be an inner batch"),
    ],
)
async def test_messages_that_the_store_cannot_write_are_rejected(
    embedded: EmbeddedRocketMQ, peer: Peer, changed: dict[str, Any], size: int
) -> None:
    assert refused(await peer.call(SEND_V2, letters(**changed), b"x" * size)) == (13, ILLEGAL)
    assert embedded.broker.store.end == 0


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"properties": {"TRAN_MSG": "true"}}, id="half message"),
        pytest.param({"properties": {"TRAN_MSG": "TRUE"}, "f": 4}, id="half message by both signs"),
        pytest.param({"f": 4}, id="prepared"),
        pytest.param({"f": 12}, id="rolled back"),
    ],
)
async def test_transactions_are_rejected(embedded: EmbeddedRocketMQ, peer: Peer, changed: dict[str, Any]) -> None:
    """As with rejectTransactionMessage. Otherwise the message would be visible before its transaction ends."""
    reply = await peer.call(SEND_V2, letters(**changed), b"1")

    assert refused(reply) == (16, "the broker[127.0.0.1] sending transaction message is forbidden")
    assert embedded.broker.store.end == 0


async def test_an_empty_body_is_rejected(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    assert (await peer.call(SEND_V2, letters(), b"")).code == 1
    assert embedded.broker.store.end == 0


async def test_dead_letters_can_be_sent(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """rmqd sends its own dead letters this way."""
    await peer.call(SEND_V2, letters("%DLQ%g", d=1), b"1")

    assert bodies(embedded.broker.store, "%DLQ%g") == ["1"]
