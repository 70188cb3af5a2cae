"""Bodies that operators' commands read, as a 5.5.0 broker wrote them."""

from __future__ import annotations

import pytest

from rmqd.errors import ProtocolError
from rmqd.wire.data_version import DataVersion
from rmqd.wire.message import MessageQueue
from rmqd.wire.settings import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rmqd.wire.time_span import QueryConsumeTimeSpanBody, QueueTimeSpan

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


@pytest.mark.parametrize("body", [b"", b"[]", b'{"consumeTimeSpanSet":[1]}', b'{"consumeTimeSpanSet":[{}]}'])
def test_what_is_no_time_span_is_the_one_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        QueryConsumeTimeSpanBody.from_json(body)


@pytest.mark.parametrize("body", [b"", b"1", b'{"subscriptionGroupTable":{"g":7}}'])
def test_what_is_no_group_is_the_one_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        SubscriptionGroupWrapper.from_json(body)
