"""POP on the wire, compared with recorded frames of the Java client and the broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.codes import RequestCode
from rmqd.errors import ProtocolError
from rmqd.wire.bodies.pop_bodies import (
    BatchAck,
    BatchAckMessageRequestBody,
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from rmqd.wire.command import decode_command, encode_request
from rmqd.wire.headers.pop_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rmqd.wire.headers.request_header import Header, RequestHeader
from rmqd.wire.loose_json import loads
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.receipt_handle import (
    OrderCounts,
    PopHandle,
    PoppedQueue,
    RetryFlag,
    format_message_offsets,
    format_order_counts,
    format_start_offsets,
    parse_start_offsets,
)
from tests.wire.golden_frames import command

HANDLE = PopHandle(0, 1795249368102, 60000, 3, RetryFlag.NORMAL, "probe-a", 1, 2)

REQUESTS: list[tuple[str, RequestHeader]] = [
    (
        "java_pop_request",
        PopMessageRequestHeader(
            bname="probe-a",
            consumer_group="jc_pop",
            topic="TC",
            queue_id=-1,
            max_msg_nums=32,
            invisible_time=60000,
            poll_time=15000,
            born_time=1795249368047,
            init_mode=0,
            exp_type="TAG",
            exp="TagC || TagB || TagD || TagE",
            order=False,
        ),
    ),
    (
        "java_ack_request",
        AckMessageRequestHeader(
            bname="probe-a", consumer_group="jc_pop", topic="TC", queue_id=1, extra_info=str(HANDLE), offset=2
        ),
    ),
    (
        "java_change_invisible_request",
        ChangeInvisibleTimeRequestHeader(
            bname="probe-a",
            consumer_group="jc_pop",
            topic="TC",
            queue_id=3,
            extra_info="0 1795249368102 60000 3 0 probe-a 3 0",
            offset=0,
            invisible_time=30000,
            suspend=False,
        ),
    ),
]


@pytest.mark.parametrize(("name", "header"), REQUESTS, ids=[name for name, _ in REQUESTS])
def test_header_equals_the_java_clients(name: str, header: RequestHeader) -> None:
    recorded = command(name)
    ours = decode_command(encode_request(header.code, 1, header.ext_fields())[4:])
    assert (ours.code, ours.ext_fields) == (recorded.code, recorded.ext_fields)
    assert type(header).from_ext_fields(recorded.ext_fields) == header


REPLIES: list[tuple[str, Header]] = [
    (
        "pop_response",
        PopMessageResponseHeader(
            pop_time=1795248355865,
            invisible_time=10000,
            revive_qid=0,
            rest_num=5,
            start_offset_info="0 0 0",
            msg_offset_info="0 0 0,1,2,3",
        ),
    ),
    (
        "change_invisible_time_response",
        ChangeInvisibleTimeResponseHeader(pop_time=1795248355915, invisible_time=3000, revive_qid=0),
    ),
]


@pytest.mark.parametrize(("name", "header"), REPLIES, ids=[name for name, _ in REPLIES])
def test_response_equals_the_brokers(name: str, header: Header) -> None:
    recorded = command(name).ext_fields
    assert type(header).from_ext_fields(recorded) == header
    assert header.ext_fields() == recorded


def test_codes_have_the_numbers_of_the_protocol() -> None:
    """Frames of some codes were not recorded."""
    assert {code.name: code.value for code in RequestCode if code.value >= 200000} == {
        "POP_MESSAGE": 200050,
        "ACK_MESSAGE": 200051,
        "PEEK_MESSAGE": 200052,
        "CHANGE_MESSAGE_INVISIBLETIME": 200053,
        "NOTIFICATION": 200054,
        "POLLING_INFO": 200055,
        "POP_LITE_MESSAGE": 200070,
        "LITE_SUBSCRIPTION_CTL": 200071,
        "NOTIFY_UNSUBSCRIBE_LITE": 200073,
        "BATCH_ACK_MESSAGE": 200151,
    }


def test_handle_of_the_java_client_round_trip() -> None:
    text = command("java_ack_request").ext_fields["extraInfo"]
    assert PopHandle.parse(text) == HANDLE
    assert str(HANDLE) == text
    assert not HANDLE.is_orderly
    assert PopHandle.parse("0 1 2 999 1 b 0 7").is_orderly


@given(st.integers(0, 2**63 - 1), st.sampled_from(RetryFlag), st.text("ab-_0|%", min_size=1), st.integers(0, 2**31 - 1))
def test_any_handle_round_trip(number: int, retry: RetryFlag, broker: str, small: int) -> None:
    handle = PopHandle(number, number, small, small, retry, broker, small, number)
    assert PopHandle.parse(str(handle)) == handle


BROKEN_HANDLES = ["", "0 1 2 3 0 b 1", "0 1 2 3 0 b 1 2 3", "0 1 2 3 3 b 1 2", "0 1 2 3 0 b x 2", "0 1 2 3 0  1 2"]


def test_a_broken_handle_is_refused(subtests: pytest.Subtests) -> None:
    for text in BROKEN_HANDLES:
        with subtests.test(text=text), pytest.raises(ProtocolError):
            PopHandle.parse(text)


def test_retry_flag_and_topic_belong_together() -> None:
    for flag, topic in ((0, "T"), (1, "%RETRY%g_T"), (2, "%RETRY%g+T")):
        assert RetryFlag(flag).real_topic("g", "T") == topic
        assert RetryFlag.of(topic) == flag
        assert RetryFlag.parse(str(flag)) == flag


NORMAL_2, NORMAL_1, RETRY_0 = (
    PoppedQueue(RetryFlag.NORMAL, 2),
    PoppedQueue(RetryFlag.NORMAL, 1),
    PoppedQueue(RetryFlag.RETRY_V1, 0),
)


def test_offset_infos_have_the_format_of_the_broker() -> None:
    assert parse_start_offsets("0 2 0;0 1 0") == {NORMAL_2: 0, NORMAL_1: 0}
    assert format_start_offsets({NORMAL_2: 0, NORMAL_1: 0}) == "0 2 0;0 1 0"
    assert parse_start_offsets(None) == parse_start_offsets("") == {}
    recorded = command("pop_response").ext_fields["msgOffsetInfo"]
    assert format_message_offsets({PoppedQueue(RetryFlag.NORMAL, 0): (0, 1, 2, 3)}) == recorded
    assert format_message_offsets({NORMAL_2: (7, 9), RETRY_0: (3,)}) == "0 2 7,9;1 0 3"


def test_order_counts_of_queues_and_of_messages() -> None:
    counts = OrderCounts({NORMAL_2: 1}, {(NORMAL_1, 17): 3})
    assert format_order_counts(counts) == "0 qo1%17 3;0 2 1"
    assert (
        counts.earlier_deliveries(NORMAL_2, 5),
        counts.earlier_deliveries(NORMAL_1, 17),
        counts.earlier_deliveries(NORMAL_1, 18),
    ) == (1, 3, 0)


BROKEN_INFOS = ["0 2", "0 2 x", "0 2 1;0 2 2", "5 2 1", "0 x 1", "0 2 1;", "0 2 1,,3", "0 qo1%x 1"]


def test_broken_offset_infos_are_refused(subtests: pytest.Subtests) -> None:
    for text in BROKEN_INFOS:
        with subtests.test(text=text), pytest.raises(ProtocolError):
            parse_start_offsets(text)


def test_assignment_response_equals_the_brokers() -> None:
    popped = QueryAssignmentResponseBody(
        (MessageQueueAssignment(MessageQueue("T1", "probe-a", -1), MessageRequestMode.POP),)
    )
    pulled = QueryAssignmentResponseBody(
        tuple(MessageQueueAssignment(MessageQueue("T1", "probe-a", queue_id)) for queue_id in (1, 0))
    )
    for name, body in (("query_assignment_pop_response", popped), ("query_assignment_pull_response", pulled)):
        recorded = command(name).body
        assert QueryAssignmentResponseBody.from_json(recorded) == body
        assert loads(body.to_json()) == loads(recorded)
    with pytest.raises(ProtocolError, match="POP"):
        QueryAssignmentResponseBody.from_json(command("query_assignment_pop_response").body.replace(b"POP", b"PUT"))


def test_a_missing_assignment_differs_from_an_empty_one() -> None:
    for body in (b"", b"{}", b'{"messageQueueAssignments":null}'):
        assert QueryAssignmentResponseBody.from_json(body) == QueryAssignmentResponseBody(None)
    for known in (QueryAssignmentResponseBody(None), QueryAssignmentResponseBody(())):
        assert QueryAssignmentResponseBody.from_json(known.to_json()) == known


def test_assignment_request_equals_the_java_clients() -> None:
    recorded = command("java_query_assignment_request")
    body = QueryAssignmentRequestBody("%RETRY%jc_pop", "jc_pop", "192.0.2.2@10451#2795897189269")
    assert recorded.code == RequestCode.QUERY_ASSIGNMENT
    assert QueryAssignmentRequestBody.from_json(recorded.body) == body
    assert loads(body.to_json()) == loads(recorded.body)


def test_batch_ack_equals_the_recorded_one() -> None:
    recorded = command("batch_ack_request")
    body = BatchAckMessageRequestBody(
        "probe-a", (BatchAck("gpop", "T1", RetryFlag.NORMAL, 0, 0, 0, 1795248355865, 10000, (2, 3)),)
    )
    assert recorded.code == RequestCode.BATCH_ACK_MESSAGE
    assert BatchAckMessageRequestBody.from_json(recorded.body) == body
    assert loads(body.to_json()) == loads(recorded.body)


def test_batch_ack_has_the_same_bytes_as_in_java() -> None:
    """Serialized by the classes of 5.5.0: the bits 0, 3 and 17 of a set that starts at offset 100."""
    ack = BatchAck("g", "T", RetryFlag.NORMAL, 100, 1, 2, 3, 4, (100, 103, 117))
    assert (
        BatchAckMessageRequestBody("bk", (ack,)).to_json()
        == b'{"acks":[{"b":"CQAC","c":"g","it":4,"pt":3,"q":1,"r":"0","rq":2,"so":100,"t":"T"}],"brokerName":"bk"}'
    )


@given(st.integers(0, 2**40), st.sets(st.integers(0, 300)))
def test_any_batch_ack_round_trip(start: int, bits: set[int]) -> None:
    offsets = tuple(start + bit for bit in sorted(bits))
    body = BatchAckMessageRequestBody("b", (BatchAck("g", "T", RetryFlag.RETRY_V1, start, 1, 2, 3, 4, offsets),))
    assert BatchAckMessageRequestBody.from_json(body.to_json()) == body


def test_more_bits_than_a_pop_can_return_are_refused() -> None:
    body = command("batch_ack_request").body.replace(b"DA==", b"AAAA" * 30_000)
    with pytest.raises(ProtocolError, match="have 90000 bytes; expected at most 65536"):
        BatchAckMessageRequestBody.from_json(body)


def test_bits_that_are_not_base64_are_refused() -> None:
    body = command("batch_ack_request").body.replace(b"DA==", b"D")
    with pytest.raises(ProtocolError, match="base64"):
        BatchAckMessageRequestBody.from_json(body)
