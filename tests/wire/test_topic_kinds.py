"""Topic attributes of brokers that rmqd knows."""

from __future__ import annotations

import json

import pytest

from rmqd.wire.bodies.config_bodies import TopicConfig, unknown_attributes


def told(attributes: dict[str, str], **fields: object) -> TopicConfig:
    """Return the settings of a topic from a broker's response to GET_TOPIC_CONFIG."""
    return TopicConfig.from_json(json.dumps({"topicName": "t", "attributes": attributes, **fields}).encode())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("message.type", "UNSPECIFIED NORMAL FIFO DELAY TRANSACTION PRIORITY LITE MIXED"),
        ("queue.type", "SimpleCQ BatchCQ RocksDBCQ"),
        ("cleanup.policy", "DELETE COMPACTION"),
    ],
)
def test_the_attributes_of_rocketmq_5_5_are_known(name: str, values: str) -> None:
    for value in values.split():
        assert unknown_attributes(told({name: value})) == []
        assert unknown_attributes(told({name: value.swapcase()})) == [f"{name}={value.swapcase()}"]


def test_each_unknown_attribute_is_named() -> None:
    assert unknown_attributes(told({})) == []
    assert unknown_attributes(told({"reserve.time": "7"}, topicFilterType="MULTI_TAG")) == []
    marks = {"message.type": "TABLE", "queue.type": "TreeCQ", "cleanup.policy": "SNAPSHOT"}
    assert unknown_attributes(told(marks, topicFilterType="NO_TAG")) == [
        "message.type=TABLE",
        "queue.type=TreeCQ",
        "cleanup.policy=SNAPSHOT",
        "topicFilterType=NO_TAG",
    ]
