"""Typed headers, compared with the recorded requests of the Java client and of an accepted probe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.codes import RequestCode
from rmqd.errors import ProtocolError
from rmqd.wire.command import decode_command, encode_request
from rmqd.wire.headers.group_headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    ResetOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmqd.wire.headers.pull_headers import PullMessageRequestHeader, PullMessageResponseHeader, PullRequestTemplate
from rmqd.wire.headers.request_header import Header, RequestHeader
from rmqd.wire.headers.send_headers import (
    ConsumerSendMsgBackRequestHeader,
    ReceivedSendHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rmqd.wire.headers.topic_headers import (
    CreateTopicRequestHeader,
    GetRouteInfoRequestHeader,
)
from rmqd.wire.messages.properties import CompressionType as Kind
from rmqd.wire.messages.properties import PullSysFlag
from tests.wire.compressing import compressed_flag
from tests.wire.golden_frames import command

LONG = st.integers(-(2**63), 2**63 - 1)

REQUESTS: list[tuple[str, RequestHeader]] = [
    ("route_request_v493", GetRouteInfoRequestHeader(topic="T1")),
    ("create_topic_request", CreateTopicRequestHeader(topic="T1", read_queue_nums=2, write_queue_nums=2)),
    (
        "java_query_offset_request",
        QueryConsumerOffsetRequestHeader(bname="probe-a", consumer_group="jc_conc", topic="%RETRY%jc_conc", queue_id=0),
    ),
    (
        "java_update_offset_oneway_request",
        UpdateConsumerOffsetRequestHeader(
            bname="probe-a", consumer_group="jc_conc", topic="TC", queue_id=3, commit_offset=1
        ),
    ),
    (
        "java_unregister_request",
        UnregisterClientRequestHeader(client_id="192.0.2.2@21505#3018346780347", consumer_group="jc_conc"),
    ),
    (
        "java_send_back_request",
        ConsumerSendMsgBackRequestHeader(
            bname="probe-a",
            offset=14462,
            group="jc_conc",
            delay_level=1,
            origin_msg_id="FD000000000000000000000000000002273830946E0968CB4B080009",
            origin_topic="TC",
            unit_mode=False,
            max_reconsume_times=16,
        ),
    ),
    (
        "java_pull_request",
        PullMessageRequestHeader(
            bname="probe-a",
            consumer_group="jc_conc",
            topic="%RETRY%jc_conc",
            queue_id=0,
            queue_offset=2,
            max_msg_nums=32,
            sys_flag=PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUSPEND,
            commit_offset=2,
            suspend_timeout_millis=15000,
            sub_version=1795249589104,
            expression_type="TAG",
            max_msg_bytes=262144,
        ),
    ),
    (
        "java_send_v2_lz4_request",
        SendMessageRequestHeaderV2(
            producer_group="jp_prod",
            topic="TC",
            queue_id=2,
            sys_flag=compressed_flag(Kind.LZ4),
            born_timestamp=1795249342966,
            flag=0,
            properties="KEYS\x01key1\x02u1\x01v1\x02UNIQ_KEY\x01FD000000000000000000000000000002258830946E0968CB21B80000\x02"
            "WAIT\x01true\x02TAGS\x01TagC\x02",
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name="probe-a",
        ),
    ),
    ("push_notify_consumer_ids_changed_40", NotifyConsumerIdsChangedRequestHeader(consumer_group="g1")),
    ("push_consumer_status_221", GetConsumerStatusRequestHeader(topic="T1", group="g1")),
    (
        "push_consumer_running_info_307",
        GetConsumerRunningInfoRequestHeader(consumer_group="g1", client_id="127.0.0.1@CPP", jstack_enable=False),
    ),
    (
        "push_consume_directly_309",
        ConsumeMessageDirectlyResultRequestHeader(
            consumer_group="g1",
            client_id="127.0.0.1@py",
            msg_id="7F000001000051AF0000000000000117",
            broker_name="probe-a",
            topic="T1",
            topic_sys_flag=0,
            group_sys_flag=0,
        ),
    ),
]


def test_header_equals_the_recorded_one(subtests: pytest.Subtests) -> None:
    """The code and the ext fields are the recorded ones, and the recorded fields are read as our header."""
    for name, header in REQUESTS:
        with subtests.test(name=name):
            recorded = command(name)
            ours = decode_command(encode_request(header.code, 1, header.ext_fields())[4:])
            assert (ours.code, ours.ext_fields) == (recorded.code, recorded.ext_fields)
            assert type(header).from_ext_fields(recorded.ext_fields) == header


def test_reset_push_is_read() -> None:
    header = ResetOffsetRequestHeader.from_ext_fields(command("push_reset_offset_220_map_body").ext_fields)
    assert header == ResetOffsetRequestHeader(topic="T1", group="g1", timestamp=0, is_force=False, queue_id=-1)


def test_send_replies_are_read() -> None:
    single = SendMessageResponseHeader.from_ext_fields(command("send_v2_response").ext_fields)
    assert (single.msg_id, single.queue_id, single.queue_offset) == ("7F000001000051AF000000000000022C", 0, 2)
    batch = SendMessageResponseHeader.from_ext_fields(command("send_batch_response").ext_fields)
    assert len(batch.msg_id.split(",")) == 3
    assert batch.queue_offset == 6
    for reply in (single, batch, SendMessageResponseHeader("id", 1, 2, "t", "b", "r")):
        assert SendMessageResponseHeader.from_ext_fields(reply.ext_fields()) == reply
    for wrong in ({"queueOffset": "x"}, {"queueId": str(2**63)}):
        with pytest.raises(ProtocolError):
            SendMessageResponseHeader.from_ext_fields(single.ext_fields() | wrong)
    with pytest.raises(ProtocolError, match="msgId"):
        SendMessageResponseHeader.from_ext_fields({"queueId": "0", "queueOffset": "0"})


def test_a_broker_reads_the_long_names_of_old_clients() -> None:
    old = ReceivedSendHeader("T1", "TBW102", 4, 0, 0, 1795248267867, 0, "TAGS\x01TagA\x02", 0, False, None, False)
    assert ReceivedSendHeader.from_request(command("send_v1_request")) == old


@pytest.mark.parametrize("name", ["send_v2_request", "java_send_batch_request"])
def test_a_broker_reads_the_same_fields_as_the_full_header(name: str) -> None:
    recorded = command(name)
    whole = SendMessageRequestHeaderV2.from_ext_fields(recorded.ext_fields)
    read = ReceivedSendHeader.from_request(recorded)
    missing = {"properties": "", "reconsume_times": 0, "unit_mode": False, "batch": False}
    for field, value in read._asdict().items():
        expected = getattr(whole, field)
        assert value == (missing.get(field) if expected is None else expected), field


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pull_response_9_msgs", PullMessageResponseHeader(9, 0, 9, 0)),
        ("pull_response_not_found_19", PullMessageResponseHeader(9, 0, 9, 0)),
    ],
)
def test_pull_reply_is_read(name: str, expected: PullMessageResponseHeader) -> None:
    assert PullMessageResponseHeader.from_ext_fields(command(name).ext_fields) == expected


UNUSABLE = [{"nextBeginOffset": "x"}, {"nextBeginOffset": "-1"}, {"minOffset": ""}, {"nextBeginOffset": "9" * 5000}]


def test_pull_reply_without_usable_offsets_is_refused(subtests: pytest.Subtests) -> None:
    for change in UNUSABLE:
        with subtests.test(change=change):
            with pytest.raises(ProtocolError):
                PullMessageResponseHeader.from_ext_fields(command("pull_response_9_msgs").ext_fields | change)
            with pytest.raises(ProtocolError, match="minOffset"):
                PullMessageResponseHeader.from_ext_fields({"nextBeginOffset": "5"})


@given(LONG, st.text(), st.booleans() | st.none())
def test_ext_fields_round_trip(number: int, text: str, flag: bool | None) -> None:
    header = GetConsumerRunningInfoRequestHeader(consumer_group=text, client_id=text, jstack_enable=flag)
    assert GetConsumerRunningInfoRequestHeader.from_ext_fields(header.ext_fields()) == header
    search = SearchOffsetRequestHeader(topic=text, queue_id=number, timestamp=number, boundary_type=None)
    assert SearchOffsetRequestHeader.from_ext_fields(search.ext_fields()) == search


def test_code_belongs_to_the_class() -> None:
    assert UpdateConsumerOffsetRequestHeader.code is RequestCode.UPDATE_CONSUMER_OFFSET
    assert "code" not in REQUESTS[0][1].ext_fields()


def test_missing_ext_field_is_named() -> None:
    with pytest.raises(ProtocolError, match=r"OffsetResponseHeader.*offset"):
        OffsetResponseHeader.from_ext_fields({})


NO_LONGS = ["", " 1", "1_0", "0x1", "1.0", "٣", "9223372036854775808", "1" * 5000, "--1"]


def test_only_a_java_long_is_an_integer(subtests: pytest.Subtests) -> None:
    for text in NO_LONGS:
        with subtests.test(text=text), pytest.raises(ProtocolError):
            OffsetResponseHeader.from_ext_fields({"offset": text})


def test_booleans_are_read_as_in_java(subtests: pytest.Subtests) -> None:
    for text, expected in (("true", True), ("TRUE", True), ("false", False), ("yes", False)):
        with subtests.test(text=text):
            fields = {"consumerGroup": "g", "clientId": "c", "jstackEnable": text}
            assert GetConsumerRunningInfoRequestHeader.from_ext_fields(fields).jstack_enable is expected


def test_the_base_class_of_request_headers_has_no_code() -> None:
    """So it cannot be sent by mistake."""
    assert issubclass(PullMessageRequestHeader, Header)
    assert not hasattr(RequestHeader, "code")


TEMPLATE_HEADER = PullMessageRequestHeader(
    bname="probe-a",
    consumer_group="jc_conc",
    topic="%RETRY%jc_conc",
    queue_id=0,
    queue_offset=2,
    max_msg_nums=32,
    sys_flag=3,
    commit_offset=2,
    suspend_timeout_millis=15000,
    sub_version=1795249589104,
    expression_type="TAG",
    max_msg_bytes=262144,
)


def from_template(header: PullMessageRequestHeader, opaque: int) -> bytes:
    assert header.bname is not None
    assert header.expression_type is not None
    template = PullRequestTemplate(
        group=header.consumer_group,
        topic=header.topic,
        queue_id=header.queue_id,
        broker_name=header.bname,
        expression_type=header.expression_type,
        subscription=header.subscription,
    )
    return template.frame(
        opaque,
        header.queue_offset,
        header.commit_offset,
        header.sys_flag,
        header.sub_version,
        header.suspend_timeout_millis,
        header.max_msg_nums,
    )


def test_template_writes_the_java_clients_pull() -> None:
    recorded = command("java_pull_request")
    ours = decode_command(from_template(TEMPLATE_HEADER, 32)[4:])
    assert (ours.code, ours.opaque, ours.flag, ours.body) == (recorded.code, recorded.opaque, recorded.flag, b"")
    assert ours.ext_fields == recorded.ext_fields


@given(st.text(), st.text(), st.text(), st.integers(0, 2**31 - 1), LONG, st.none() | st.text())
def test_template_holds_any_name(
    group: str, topic: str, broker_name: str, small: int, large: int, subscription: str | None
) -> None:
    """With any characters in the names, the frame is complete and has the given values."""
    header = replace(
        TEMPLATE_HEADER,
        consumer_group=group,
        topic=topic,
        bname=broker_name,
        queue_id=small,
        queue_offset=large,
        commit_offset=large,
        sub_version=large,
        subscription=subscription,
    )
    frame = from_template(header, small)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    decoded = decode_command(frame[4:])
    assert decoded.opaque == small
    assert decoded.body == b""
    assert PullMessageRequestHeader.from_ext_fields(decoded.ext_fields) == header


def test_template_includes_the_extra_fields_of_every_request() -> None:
    template = PullRequestTemplate(
        group="g", topic="t", queue_id=1, broker_name="b", extra_fields={"nsd": "true", "ns": "100%"}
    )
    decoded = decode_command(template.frame(1, 0, 0, 2, 0, 15000, 32)[4:])
    assert (decoded.ext_fields["nsd"], decoded.ext_fields["ns"]) == ("true", "100%")
