"""Bodies in JSON, compared with recorded bodies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rmqd.errors import ProtocolError
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, TopicConfig
from rmqd.wire.bodies.group_bodies import (
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    GetConsumerListByGroupResponseBody,
    GetConsumerStatusBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    QueryConsumeTimeSpanBody,
    QuerySubscriptionResponseBody,
    QueueTimeSpan,
    ResetOffsetBody,
)
from rmqd.wire.bodies.heartbeat_data import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    tag_subscription,
)
from rmqd.wire.bodies.route_data import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from rmqd.wire.bodies.stats_bodies import (
    Connection,
    ConsumerConnection,
    ConsumeStats,
    OffsetWrapper,
    TopicOffset,
    TopicStatsTable,
)
from rmqd.wire.loose_json import dumps, loads
from rmqd.wire.message_queue import MessageQueue
from tests.wire.golden_frames import command

Q0, Q1 = MessageQueue("T1", "probe-a", 0), MessageQueue("T1", "probe-a", 1)
ROUTE = TopicRouteData(
    (QueueData("probe-a", 2, 2, 6),), (BrokerData("ProbeCluster", "probe-a", {0: "127.0.0.1:20911"}),)
)
STATUS = GetConsumerStatusBody({Q0: 5})

BODIES: list[tuple[str, Any]] = [
    ("route_response_strict_json_v493", ROUTE),
    ("route_response_loose_json_v0", ROUTE),
    (
        "cluster_info_response",
        ClusterInfo({"probe-a": ROUTE.broker_datas[0]}, {"ProbeCluster": ("probe-a",)}),
    ),
    ("consumer_list_response", GetConsumerListByGroupResponseBody(("127.0.0.1@py",))),
    ("lock_batch_mq_request", LockBatchRequestBody("g1", "127.0.0.1@py", (Q0, Q1))),
    ("unlock_batch_mq_request", LockBatchRequestBody("g1", "127.0.0.1@py", (Q0, Q1))),
    ("lock_batch_mq_response", LockBatchResponseBody(frozenset({Q0, Q1}))),
    (
        "java_lock_request",
        LockBatchRequestBody(
            "jc_order", "192.0.2.2@21588#3031491334162", (MessageQueue("%RETRY%jc_order", "probe-a", 0),)
        ),
    ),
    ("push_reset_offset_220_map_body", ResetOffsetBody({Q0: 0, Q1: 0})),
    ("push_reset_offset_220_list_body", ResetOffsetBody({Q0: 0, Q1: 0})),
    ("reset_offset_222_server_side_response", ResetOffsetBody({Q0: 0, Q1: 0})),
    ("push_consumer_status_221_reply", STATUS),
    ("consumer_status_223_response", GetConsumerStatusBody({}, {"127.0.0.1@py": {Q0: 5}})),
    (
        "consume_stats_208_response",
        ConsumeStats({Q1: OffsetWrapper(0, 0), Q0: OffsetWrapper(9, 5, 9, 1795248267871)}),
    ),
    ("topic_stats_202_response", TopicStatsTable({Q1: TopicOffset(0, 0), Q0: TopicOffset(0, 9, 1795248267875)})),
    (
        "consumer_connection_203_response",
        ConsumerConnection(
            (Connection("127.0.0.1@py", "127.0.0.1:42048", "PYTHON", 493),),
            {
                "%RETRY%g1": SubscriptionData("%RETRY%g1", sub_version=1795248353286),
                "T1": SubscriptionData("T1", sub_version=1795248353286),
            },
            "CONSUME_PASSIVELY",
            "CLUSTERING",
            "CONSUME_FROM_FIRST_OFFSET",
        ),
    ),
    ("topic_config_351_response", TopicConfig(topic_name="T1", read_queue_nums=2, write_queue_nums=2)),
    ("subscription_group_352_response", SubscriptionGroupConfig(group_name="g1")),
    (
        "push_consumer_running_info_307_reply",
        ConsumerRunningInfo(
            {
                "PROP_CONSUMEORDERLY": "false",
                "PROP_CONSUMER_START_TIMESTAMP": "1",
                "PROP_THREADPOOL_CORE_SIZE": "20",
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_CLIENT_VERSION": "V5_5_0",
                "PROP_NAMESERVER_ADDR": "x;",
            }
        ),
    ),
    ("push_consume_directly_309_reply", ConsumeMessageDirectlyResult(CMResult.SUCCESS, spent_time_mills=3)),
]
IDS = [name for name, _ in BODIES]


@pytest.mark.parametrize(("name", "expected"), BODIES, ids=IDS)
def test_recorded_body_is_read(name: str, expected: Any) -> None:
    assert type(expected).from_json(command(name).body) == expected


def test_our_body_is_read_as_the_same_value(subtests: pytest.Subtests) -> None:
    for name, expected in BODIES:
        with subtests.test(name=name):
            assert type(expected).from_json(expected.to_json()) == expected


AS_RECORDED = [
    "lock_batch_mq_request",
    "java_lock_request",
    "topic_config_351_response",
    "route_response_strict_json_v493",
    "subscription_group_352_response",
    "consumer_status_223_response",
    "push_reset_offset_220_map_body",
]


def test_our_body_has_the_recorded_fields(subtests: pytest.Subtests) -> None:
    """All fields that Java wrote, also fields that we do not read."""
    for name in AS_RECORDED:
        with subtests.test(name=name):
            body = dict(BODIES)[name]
            assert loads(body.to_json()) == loads(command(name).body)


def test_only_the_loose_dialect_has_number_keys_without_quotes() -> None:
    """The client's version decides the dialect of routes. The cluster is always written in the loose dialect."""
    route, cluster = dict(BODIES)["route_response_loose_json_v0"], dict(BODIES)["cluster_info_response"]
    assert isinstance(route, TopicRouteData)
    assert route.to_json(strict=False) == command("route_response_loose_json_v0").body
    assert route.to_json() == command("route_response_strict_json_v493").body
    assert cluster.to_json() == command("cluster_info_response").body


def test_reset_reply_is_written_as_java_writes_it() -> None:
    recorded = command("reset_offset_222_server_side_response").body
    assert loads(ResetOffsetBody({Q0: 0, Q1: 0}).to_json()) == loads(recorded)


def test_a_heartbeat_has_the_fields_of_the_java_client() -> None:
    """The heartbeat is for the same group, and built from the user's expressions."""
    recorded = loads(command("java_heartbeat_consumer_request").body)
    heartbeat = HeartbeatData(
        "192.0.2.2@21505#3018346780347",
        (
            ConsumerData(
                "jc_conc",
                (
                    tag_subscription("%RETRY%jc_conc", "*", 1795249587935),
                    tag_subscription("TC", "TagC || TagB || TagD || TagE", 1795249587923),
                ),
                consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            ),
        ),
        ("CLIENT_INNER_PRODUCER",),
    )
    ours = loads(heartbeat.to_json())
    for consumers in (recorded["consumerDataSet"], ours["consumerDataSet"]):
        for subscription in consumers[0]["subscriptionDataSet"]:
            subscription["codeSet"].sort()
            subscription["tagsSet"].sort()
    assert ours == recorded
    assert HeartbeatData.from_json(heartbeat.to_json()) == heartbeat


def test_recorded_heartbeat_is_read() -> None:
    heartbeat = HeartbeatData.from_json(command("heartbeat_request_python").body)
    (group,) = heartbeat.consumer_data_set
    assert (heartbeat.client_id, group.group_name) == ("127.0.0.1@py", "g1")
    assert [subscription.topic for subscription in group.subscription_data_set] == ["T1", "%RETRY%g1"]


def test_check_client_body_round_trip() -> None:
    body = CheckClientRequestBody("c", "g", SubscriptionData("T", "a > 1", expression_type="SQL92"))
    assert CheckClientRequestBody.from_json(body.to_json()) == body


def test_query_subscription_body_round_trip() -> None:
    for body in (
        QuerySubscriptionResponseBody("g", "T", SubscriptionData("T", "a", frozenset({"a"}), frozenset({97}))),
        QuerySubscriptionResponseBody("g", None, None),
    ):
        assert QuerySubscriptionResponseBody.from_json(body.to_json()) == body


def test_time_span_body_round_trip() -> None:
    body = QueryConsumeTimeSpanBody((QueueTimeSpan(Q0, 1, 2, 3, 4), QueueTimeSpan(Q1, 0, 0, 0, 0)))
    assert QueryConsumeTimeSpanBody.from_json(body.to_json()) == body


def test_topic_list_round_trip() -> None:
    assert TopicList.from_json(b'{"topicList":["a","b"]}') == TopicList(("a", "b"))
    assert TopicList.from_json(TopicList(("a",)).to_json()) == TopicList(("a",))


def test_route_with_replicas_and_order() -> None:
    route = TopicRouteData(
        (QueueData("a", 4, 0, 4), QueueData("b", 0, 4, 2)),
        (BrokerData("c", "a", {0: "h:1", 1: "h:2"}, True), BrokerData("c", "b", {2: "h:3"})),
        "a:4;b:4",
    )
    assert TopicRouteData.from_json(route.to_json()) == route
    assert [queue.is_readable for queue in route.queue_datas] == [True, False]
    assert [queue.is_writeable for queue in route.queue_datas] == [False, True]
    assert [broker.master for broker in route.broker_datas] == ["h:1", None]


def test_lag_counts_the_unfinished_messages() -> None:
    assert OffsetWrapper(9, 5).lag == 4
    assert OffsetWrapper(5, 9).lag == 0


def test_missing_fields_have_javas_defaults() -> None:
    assert TopicRouteData.from_json(b"{}") == TopicRouteData()
    assert ConsumeStats.from_json(b'{"offsetTable":null}') == ConsumeStats({})
    assert ResetOffsetBody.from_json(b"{}") == ResetOffsetBody({})


def test_queue_counts_must_be_valid(subtests: pytest.Subtests) -> None:
    """A route decides how many queue objects are made, so absurd numbers are refused here."""
    for count in (-1, 2**31, True, "many"):
        with subtests.test(count=count):
            queue = {"brokerName": "a", "perm": 6, "readQueueNums": count, "writeQueueNums": 1}
            with pytest.raises(ProtocolError, match="readQueueNums"):
                TopicRouteData.from_json(dumps({"queueDatas": [queue]}))


READERS: list[Callable[[bytes], object]] = [
    TopicRouteData.from_json,
    ClusterInfo.from_json,
    TopicList.from_json,
    HeartbeatData.from_json,
    SubscriptionData.from_json,
    CheckClientRequestBody.from_json,
    LockBatchRequestBody.from_json,
    LockBatchResponseBody.from_json,
    GetConsumerListByGroupResponseBody.from_json,
    ResetOffsetBody.from_json,
    GetConsumerStatusBody.from_json,
    QuerySubscriptionResponseBody.from_json,
    ConsumeStats.from_json,
    TopicStatsTable.from_json,
    QueryConsumeTimeSpanBody.from_json,
    ConsumerConnection.from_json,
    TopicConfig.from_json,
    SubscriptionGroupConfig.from_json,
]
WRONG: list[Any] = [
    None,
    0,
    1.5,
    True,
    "x",
    "9" * 30,
    [],
    [1],
    ["x"],
    {},
    {"a": 1},
    {"x": None},
    [[]],
    [{}],
    [None],
    2**70,
    -1,
]


def wrong_bodies(value: Any) -> list[Any]:
    """Return every variant of a body with one wrong or missing value, at any place."""
    bodies = list(WRONG)
    if isinstance(value, dict):
        for key, item in value.items():
            bodies += [{**value, key: wrong} for wrong in wrong_bodies(item)]
            bodies.append({other: value[other] for other in value if other != key})
    elif isinstance(value, list):
        for index, item in enumerate(value):
            bodies += [[*value[:index], wrong, *value[index + 1 :]] for wrong in wrong_bodies(item)]
    return bodies


def test_wrong_types_are_protocol_errors(subtests: pytest.Subtests) -> None:
    """A value of a wrong type anywhere is either read or raises ProtocolError."""
    for name, expected in BODIES:
        with subtests.test(name=name):
            refused = 0
            for wrong in wrong_bodies(loads(command(name).body)):
                try:
                    type(expected).from_json(dumps(wrong))
                except ProtocolError:
                    refused += 1
            assert refused >= 12


def test_body_must_be_an_object(subtests: pytest.Subtests) -> None:
    for reader in READERS:
        with subtests.test(reader=reader):
            for body in (b"", b"[]", b"null", b"1", b"\xff", b'"x"', json.dumps(["a"]).encode()):
                with pytest.raises(ProtocolError):
                    reader(body)


def test_running_info_round_trip() -> None:
    """Every field has a different value. The map key of a queue is an object, as fastjson reads it."""
    queue = ProcessQueueInfo(1, 2, 3, 4, 5, 6, 7, 8, True, 9, 10, True, 11, 12)
    info = ConsumerRunningInfo(
        {"PROP_CONSUMEORDERLY": "true"},
        (tag_subscription("T1", "a || b", 7),),
        {Q0: queue, Q1: ProcessQueueInfo()},
        {"T1": ConsumeStatus(1.5, 2.5, 3.5, 4.5, 5.5, 6)},
        {"state": "running"},
        "all stacks",
        {Q1: PopProcessQueueInfo(1, True, 2)},
    )
    assert ConsumerRunningInfo.from_json(info.to_json()) == info
    assert b'"mqTable":{{"brokerName":"probe-a","queueId":0,"topic":"T1"}:{"cachedMsgCount":4,' in info.to_json()
    assert b'"droped":true' in info.to_json()
    popped = b'"mqPopTable":{{"brokerName":"probe-a","queueId":1,"topic":"T1"}:{"droped":true,"lastPopTimestamp":2,'
    assert popped in info.to_json()


def test_direct_result_round_trip() -> None:
    result = ConsumeMessageDirectlyResult(CMResult.THROW_EXCEPTION, True, False, "ValueError: no", 12)
    assert ConsumeMessageDirectlyResult.from_json(result.to_json()) == result
