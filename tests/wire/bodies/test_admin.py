"""Bodies of operator commands, as a 5.5.0 broker wrote them."""

from __future__ import annotations

import pytest

from rmqd.errors import ProtocolError
from rmqd.wire.bodies.config_bodies import (
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmqd.wire.bodies.group_bodies import GroupList, ProducerTableInfo, QueryConsumeTimeSpanBody, QueueTimeSpan
from rmqd.wire.bodies.json_body import DataVersion
from rmqd.wire.bodies.route_data import KVTable, TopicList
from rmqd.wire.bodies.stats_bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeQueueData,
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeQueueResponseBody,
)
from rmqd.wire.message_queue import MessageQueue

Body = (
    BrokerStatsData
    | ConsumeStatsList
    | GroupList
    | KVTable
    | ProducerTableInfo
    | QueryConsumeQueueResponseBody
    | TopicList
)
TIME_SPANS = (
    b'{"consumeTimeSpanSet":[{"consumeTimeStamp":1795259073366,"consumeTimeStampStr":"2026-11-21#11:04:33:366",'
    b'"delayTime":1795259073490,"maxTimeStamp":1795259073366,"maxTimeStampStr":"2026-11-21#11:04:33:366",'
    b'"messageQueue":{"brokerName":"broker-a","queueId":0,"topic":"BenchmarkTest"},"minTimeStamp":1795259073366,'
    b'"minTimeStampStr":"2026-11-21#11:04:33:366"}]}'
)
GROUPS = (
    b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1795259072263},"forbiddenTable":{},'
    b'"subscriptionGroupTable":{"mailer":{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,'
    b'"consumeEnable":false,"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
    b'"groupName":"mailer","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
    b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":2,'
    b'"whichBrokerWhenConsumeSlowly":1}}}'
)


def test_time_spans() -> None:
    span = QueueTimeSpan(
        MessageQueue("BenchmarkTest", "broker-a", 0), 1795259073366, 1795259073366, 1795259073366, 1795259073490
    )
    body = QueryConsumeTimeSpanBody((span,))

    assert QueryConsumeTimeSpanBody.from_json(TIME_SPANS) == body
    assert QueryConsumeTimeSpanBody.from_json(body.to_json()) == body


def test_groups() -> None:
    expected = SubscriptionGroupConfig(group_name="mailer", consume_enable=False, retry_queue_nums=2)

    groups = SubscriptionGroupWrapper.from_json(GROUPS)

    assert groups == SubscriptionGroupWrapper({"mailer": expected}, DataVersion(0, 1795259072263))
    assert groups.to_json() == GROUPS


NO_TIME_SPANS = [b"", b"[]", b'{"consumeTimeSpanSet":[1]}', b'{"consumeTimeSpanSet":[{}]}']


def test_invalid_time_spans_are_protocol_errors(subtests: pytest.Subtests) -> None:
    for body in NO_TIME_SPANS:
        with subtests.test(body=body), pytest.raises(ProtocolError):
            QueryConsumeTimeSpanBody.from_json(body)


def test_invalid_groups_are_protocol_errors(subtests: pytest.Subtests) -> None:
    for body in (b"", b"1", b'{"subscriptionGroupTable":{"g":7}}'):
        with subtests.test(body=body), pytest.raises(ProtocolError):
            SubscriptionGroupWrapper.from_json(body)


PAGE_OF_TOPICS = (
    b'{"dataVersion":{"counter":18,"stateVersion":0,"timestamp":1795279603540},"mappingDataVersion":{"counter":0,'
    b'"stateVersion":0,"timestamp":1795279599956},"topicConfigTable":{"%RETRY%zz":{"attributes":{},"order":false,'
    b'"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"%RETRY%zz","topicSysFlag":0,'
    b'"writeQueueNums":4}},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}'
)
PLACES = (
    b'{"brokerAddr":"127.0.0.1:24189","consumeStatsList":[{"SELF_TEST_C_GROUP":[]},{"G":[{"consumeTps":0.0,'
    b'"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:{"brokerOffset":1,"consumerOffset":5,'
    b'"lastTimestamp":0,"pullOffset":0},{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"brokerOffset":2,'
    b'"consumerOffset":1,"lastTimestamp":1795279602333,"pullOffset":0}}}]}],"totalDiff":-3,"totalInflightDiff":-6}'
)
COUNTERS = (
    b'{"statsDay":{"avgpt":1.0,"sum":3,"tps":0.1},"statsHour":{"avgpt":1.0,"sum":2,"tps":0.2},'
    b'"statsMinute":{"avgpt":0.0,"sum":0,"tps":0.0}}'
)
ENTRIES = (
    b'{"filterData":"G@T is not online!","maxQueueIndex":2,"minQueueIndex":0,"queueData":[{"eval":false,'
    b'"physicOffset":213,"physicSize":197,"tagsCode":0}]}'
)
TOPICS_OF_GROUP = b'{"brokerAddr":"127.0.0.1:24189","topicList":["T"]}'


def test_page_of_topics() -> None:
    wrapper = TopicConfigSerializeWrapper.from_json(PAGE_OF_TOPICS)
    topic = TopicConfig(topic_name="%RETRY%zz", read_queue_nums=4, write_queue_nums=4)

    assert wrapper == TopicConfigSerializeWrapper({"%RETRY%zz": topic}, DataVersion(18, 1795279603540))
    assert TopicConfigSerializeWrapper.from_json(wrapper.to_json()) == wrapper


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (
            PLACES,
            ConsumeStatsList(
                {
                    "SELF_TEST_C_GROUP": (),
                    "G": (
                        ConsumeStats(
                            {
                                MessageQueue("T", "broker-a", 1): OffsetWrapper(1, 5),
                                MessageQueue("T", "broker-a", 0): OffsetWrapper(2, 1, 0, 1795279602333),
                            }
                        ),
                    ),
                },
                "127.0.0.1:24189",
            ),
        ),
        (
            COUNTERS,
            BrokerStatsData(BrokerStatsItem(), BrokerStatsItem(2, 0.2, 1.0), BrokerStatsItem(3, 0.1, 1.0)),
        ),
        (ENTRIES, QueryConsumeQueueResponseBody(0, 2, (ConsumeQueueData(213, 197, 0),), None, "G@T is not online!")),
        (TOPICS_OF_GROUP, TopicList(("T",), "127.0.0.1:24189")),
        (b'{"table":{"k":"v"}}', KVTable({"k": "v"})),
        (b'{"groupList":["G"]}', GroupList(("G",))),
        (b'{"data":{}}', ProducerTableInfo({})),
    ],
)
def test_body_is_read_and_written_unchanged(body: bytes, value: Body) -> None:
    assert type(value).from_json(body) == value
    assert value.to_json() == body
