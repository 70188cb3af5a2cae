"""Topics: administrators create, change, list and delete them. Remarks are from RocketMQ 5.5.0."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions
from rmqd.wire.bodies.config_bodies import CreateTopicListRequestBody, TopicConfig, TopicConfigSerializeWrapper
from rmqd.wire.bodies.route_data import TopicList
from tests.nightly.broker.asking import Asking, asking, body, told

CREATE_LIST, ALL, DELETE, SYSTEM_TOPICS, GET = 18, 21, 215, 305, 351
DONE = (0, "not set any response code")


@pytest.fixture
async def mq() -> AsyncIterator[Asking]:
    """An embedded RocketMQ with the topic T of two queues."""
    async with asking(EmbeddedOptions(topics={"T": 2})) as connections:
        yield connections


async def config(mq: Asking, topic: str) -> dict[str, Any]:
    value: dict[str, Any] = body(await mq.broker.call(GET, {"topic": topic}))
    return value


async def test_a_topic_is_created_and_changed(mq: Asking) -> None:
    assert told(await mq.broker.call(GET, {"topic": "N"})) == (17, "No topic in this broker. topic: N")
    assert told(await mq.create("N", 3, perm=4, order=True, topic_filter_type="MULTI_TAG", topic_sys_flag=2)) == DONE
    assert await config(mq, "N") == {
        "attributes": {},
        "order": True,
        "perm": 4,
        "readQueueNums": 3,
        "topicFilterType": "MULTI_TAG",
        "topicName": "N",
        "topicSysFlag": 2,
        "writeQueueNums": 3,
    }

    assert told(await mq.create("N", 5)) == DONE
    assert (await config(mq, "N"))["writeQueueNums"] == 5
    assert (await config(mq, "N"))["order"] is False


@pytest.mark.parametrize(
    ("topic", "remark"),
    [
        (" ", "The specified topic is blank."),
        ("a b", "The specified topic: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("x" * 128, f"The specified topic: {'x' * 128}, is longer than topic max length: 127"),
        ("TBW102", "The topic[TBW102] is conflict with system topic."),
        ("rmq_sys_x", "The topic[rmq_sys_x] is conflict with system topic."),
        ("broker-a", "The topic[broker-a] is conflict with system topic."),
        ("DefaultCluster_REPLY_TOPIC", "The topic[DefaultCluster_REPLY_TOPIC] is conflict with system topic."),
    ],
)
async def test_invalid_topic_names_are_rejected(mq: Asking, topic: str, remark: str) -> None:
    """If one name of a list is invalid, no topic is created."""
    assert told(await mq.create(topic)) == (29, remark)
    several = CreateTopicListRequestBody((TopicConfig(topic_name="GOOD"), TopicConfig(topic_name=topic)))
    assert told(await mq.broker.call(CREATE_LIST, body=several.to_json())) == (29, remark)
    assert (await mq.broker.call(GET, {"topic": "GOOD"})).code == 17


async def test_an_invalid_filter_type_is_rejected(mq: Asking) -> None:
    reply = await mq.create("N", topic_filter_type="FOO")
    assert reply.code == 1
    assert "topicFilterType = [FOO] value invalid" in (reply.remark or "")


async def test_attributes_are_added_changed_and_removed(mq: Asking) -> None:
    assert told(await mq.create("N", attributes="+message.type=FIFO,+reserve.time=-1,+queue.type=SimpleCQ")) == DONE
    assert (await config(mq, "N"))["attributes"] == {
        "message.type": "FIFO",
        "reserve.time": "-1",
        "queue.type": "SimpleCQ",
    }

    assert told(await mq.create("N", attributes="+message.type=NORMAL,-reserve.time")) == (0, DONE[1])
    assert (await config(mq, "N"))["attributes"] == {"message.type": "NORMAL", "queue.type": "SimpleCQ"}


@pytest.mark.parametrize(
    ("attributes", "code", "remark"),
    [
        (
            "+message.type=X",
            1,
            "value is not in set: [UNSPECIFIED, MIXED, TRANSACTION, PRIORITY, FIFO, DELAY, LITE, NORMAL]",
        ),
        ("message.type=NORMAL", 1, "add/alter attribute format is wrong: message.type"),
        ("+message.type", 1, "delete attribute format is wrong: +message.type"),
        ("-message.type", 1, "attempt to delete a nonexistent key: message.type"),
        ("+nokey=1", 1, "unsupported key: nokey"),
        ("+a=1,+a=2", 1, "key duplication: +a"),
        ("+queue.type=BatchCQ", 1, "attempt to update an unchangeable attribute. key: queue.type"),
        ("+message.type=MIXED", 29, "MIXED message type is not supported."),
        ("+reserve.time=x", 1, 'For input string: "x"'),
        ("+reserve.time=-2", 1, "value is not in range(-1, 9223372036854775807)"),
    ],
)
async def test_invalid_attributes_are_rejected(mq: Asking, attributes: str, code: int, remark: str) -> None:
    """The existing topic does not change."""
    assert told(await mq.create("T", attributes=attributes)) == (code, remark)
    assert (await config(mq, "T"))["attributes"] == {}


async def test_a_new_topic_has_no_attributes_to_remove(mq: Asking) -> None:
    remark = "only add attribute is supported while creating topic. key: message.type"
    assert told(await mq.create("N", attributes="-message.type")) == (1, remark)


async def test_a_list_of_topics_is_created(mq: Asking) -> None:
    several = (TopicConfig(topic_name="A", attributes={"+message.type": "DELAY"}), TopicConfig(topic_name="B", perm=4))
    assert told(await mq.broker.call(CREATE_LIST, body=CreateTopicListRequestBody(several).to_json())) == DONE
    assert (await config(mq, "A"))["attributes"] == {"message.type": "DELAY"}
    assert (await config(mq, "B"))["perm"] == 4


async def test_topics_are_listed_at_once_or_in_pages(mq: Asking) -> None:
    """If the table's version has changed, the page starts at the beginning."""
    everything = await mq.broker.call(ALL)
    table = TopicConfigSerializeWrapper.from_json(everything.body).topic_config_table
    assert everything.ext_fields == {"totalTopicNum": str(len(table))}
    assert {"T", "TBW102"} <= table.keys()

    names = sorted(table)
    first = await mq.broker.call(ALL, {"topicSeq": "0", "maxTopicNum": "2"})
    assert list(TopicConfigSerializeWrapper.from_json(first.body).topic_config_table) == names[:2]
    version = json.dumps(body(first)["dataVersion"])
    second = await mq.broker.call(ALL, {"topicSeq": "2", "maxTopicNum": "2", "dataVersion": version})
    assert list(TopicConfigSerializeWrapper.from_json(second.body).topic_config_table) == names[2:4]
    assert second.ext_fields == {"totalTopicNum": str(len(table))}

    await mq.create("A0")
    again = await mq.broker.call(ALL, {"topicSeq": "2", "maxTopicNum": "2", "dataVersion": version})
    assert list(TopicConfigSerializeWrapper.from_json(again.body).topic_config_table) == ["A0", names[0]]


async def test_system_topics_are_listed(mq: Asking) -> None:
    topics = TopicList.from_json((await mq.broker.call(SYSTEM_TOPICS)).body).topics
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "broker-a", "DefaultCluster"} <= set(topics)


async def test_deleting_a_topic_deletes_its_messages_and_offsets(mq: Asking) -> None:
    await mq.broker.send("T")
    offset = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
    await mq.broker.call(200, body=json.dumps({"groupName": "g"}).encode())
    await mq.broker.call(15, {**offset, "commitOffset": "1"})

    assert told(await mq.broker.call(DELETE, {"topic": "T"})) == (0, None)
    assert (await mq.broker.call(GET, {"topic": "T"})).code == 17
    assert (await mq.route("T")).code == 17
    await mq.create("T")
    assert (await mq.broker.call(30, {"topic": "T", "queueId": "0"})).ext_fields["offset"] == "0"
    assert (await mq.broker.call(14, {**offset, "setZeroIfNotFound": "false"})).code == 22


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("nope", (0, None)),
        (" ", (29, "The specified topic is blank.")),
        ("TBW102", (29, "The topic[TBW102] is conflict with system topic.")),
    ],
)
async def test_responses_to_the_deletion_of_missing_and_system_topics(
    mq: Asking, topic: str, expected: tuple[int, str | None]
) -> None:
    assert told(await mq.broker.call(DELETE, {"topic": topic})) == expected
