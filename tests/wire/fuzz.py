"""Throws damaged frames at everything that decodes. `run(count, seed)` does the same again for the same arguments.

Each case is a recorded frame with some of its bytes changed, several such in a row, or noise; it is fed in cuts of
random sizes to a FrameDecoder, and what comes out goes to every decoder. Whatever is not a value or a ProtocolError is
a failure.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rmqd.errors import ProtocolError
from rmqd.wire.bodies.cluster import ClusterInfo, KVTable, TopicList
from rmqd.wire.bodies.consume_queue import QueryConsumeQueueResponseBody
from rmqd.wire.bodies.delay_offset import DelayOffsetSerializeWrapper
from rmqd.wire.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    GetConsumerListByGroupResponseBody,
    GetConsumerStatusBody,
    GroupList,
    QueryCorrectionOffsetBody,
    QuerySubscriptionResponseBody,
    ResetOffsetBody,
)
from rmqd.wire.bodies.heartbeat import CheckClientRequestBody, HeartbeatData, SubscriptionData
from rmqd.wire.bodies.lock import LockBatchRequestBody, LockBatchResponseBody
from rmqd.wire.bodies.pop import BatchAckMessageRequestBody, QueryAssignmentRequestBody, QueryAssignmentResponseBody
from rmqd.wire.bodies.producers import ProducerConnection, ProducerTableInfo
from rmqd.wire.bodies.route import TopicRouteData
from rmqd.wire.bodies.running_info import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from rmqd.wire.bodies.settings import (
    CreateTopicListRequestBody,
    GroupForbidden,
    SetMessageRequestModeRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmqd.wire.bodies.stats import BrokerStatsData, ConsumerConnection, ConsumeStats, ConsumeStatsList, TopicStatsTable
from rmqd.wire.bodies.time_span import QueryConsumeTimeSpanBody
from rmqd.wire.command import RemotingCommand, decode_command, encode_command, encode_request
from rmqd.wire.frame import FrameDecoder
from rmqd.wire.headers.base import Header, RequestHeader
from rmqd.wire.headers.offset import OffsetResponseHeader
from rmqd.wire.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rmqd.wire.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.headers.send import ReceivedSendHeader, SendMessageRequestHeaderV2, SendMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.compression import compress
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import StoredMessage, decode_batch, decode_record, encode_message
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.message_id import parse_offset_message_id
from rmqd.wire.messages.sys_flag import CompressionType
from rmqd.wire.pop import PopHandle, parse_message_offsets, parse_order_counts, parse_start_offsets
from tests.wire.golden_frames import NAMES, frame

QUEUE = MessageQueue("T", "b", 0)
BODIES: list[Callable[[bytes], object]] = [
    CheckClientRequestBody.from_json,
    ClusterInfo.from_json,
    ConsumeMessageDirectlyResult.from_json,
    ConsumerRunningInfo.from_json,
    ConsumeStats.from_json,
    ConsumerConnection.from_json,
    ConsumerOffsetSerializeWrapper.from_json,
    DelayOffsetSerializeWrapper.from_json,
    GetConsumerListByGroupResponseBody.from_json,
    GetConsumerStatusBody.from_json,
    GroupForbidden.from_json,
    HeartbeatData.from_json,
    LockBatchRequestBody.from_json,
    LockBatchResponseBody.from_json,
    QueryCorrectionOffsetBody.from_json,
    QuerySubscriptionResponseBody.from_json,
    QueryConsumeTimeSpanBody.from_json,
    ResetOffsetBody.from_json,
    SetMessageRequestModeRequestBody.from_json,
    SubscriptionData.from_json,
    SubscriptionGroupConfig.from_json,
    SubscriptionGroupWrapper.from_json,
    SubscriptionGroupList.from_json,
    TopicConfig.from_json,
    BatchAckMessageRequestBody.from_json,
    QueryAssignmentRequestBody.from_json,
    QueryAssignmentResponseBody.from_json,
    BrokerStatsData.from_json,
    ConsumeStatsList.from_json,
    CreateTopicListRequestBody.from_json,
    GroupList.from_json,
    KVTable.from_json,
    ProducerConnection.from_json,
    ProducerTableInfo.from_json,
    QueryConsumeQueueResponseBody.from_json,
    TopicConfigSerializeWrapper.from_json,
    TopicList.from_json,
    TopicRouteData.from_json,
    TopicStatsTable.from_json,
    decode_batch,
    decode_record,
]
TEXTS: list[Callable[[str], object]] = [
    parse_offset_message_id,
    PopHandle.parse,
    parse_start_offsets,
    parse_message_offsets,
    parse_order_counts,
]
HEADERS: list[type[Header]] = [
    AckMessageRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    OffsetResponseHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    RequestHeader,
]
# sizes, signs and depths at which decoders like to break
INTERESTING = [
    b"\0", b"\xff", b"\x7f", b"\x80", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0",
    b"\0\0\0\x01", b"\xc3", b"\x01", b"\x02", b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b"\\ud800",
    b"null", b"true", b"NaN", b"1e999", b"-", b"{{", b'{"a":1}', b"0.5", b'"x"',
    b"[" * 200, b'{"a":' * 200, b"{0:" * 200, b"{" * 2000, b"[" * 5000, b"9" * 5000,
]  # fmt: skip


@dataclass(slots=True)
class FuzzReport:
    """What came of the cases. `slowest_seconds` is the processor time of the slowest one, `slowest_case` its number."""

    cases: int = 0
    commands: int = 0
    messages: int = 0
    corrupt: int = 0
    bodies: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0
    slowest_case: int = 0


def run(count: int, seed: int, *, first: int = 0) -> FuzzReport:
    """Try `count` cases from number `first` on; raises what a decoder should not have raised, naming the case."""
    report, seeds = FuzzReport(), [frame(name) for name in NAMES]
    seeds += [frame(name) for name in NAMES if name.startswith("pull_response")] * 3
    for number in range(first, first + count):
        chance = random.Random(f"{seed}/{number}")
        data = _case(chance, seeds)
        started = time.thread_time()
        try:
            _feed(data, chance, report)
        except Exception as error:
            error.add_note(f"case {number} of seed {seed}: {data[:400].hex()}")
            raise
        report.cases += 1
        if (seconds := time.thread_time() - started) > report.slowest_seconds:
            report.slowest_seconds, report.slowest_case = seconds, number
    return report


def _case(chance: random.Random, seeds: list[bytes]) -> bytes:
    kind = chance.random()
    if kind < 0.05:
        return chance.randbytes(chance.randrange(200))
    if kind < 0.1:
        return _framed(chance.randbytes(chance.randrange(200)))
    if kind < 0.2:
        return b"".join(_mutate(chance, chance.choice(seeds)) for _ in range(3))
    if kind < 0.25:
        return _framed(_pull_reply(chance))
    if kind < 0.35:
        return b"".join(chance.choices(seeds, k=2)) + _mutate(chance, chance.choice(seeds))
    return _mutate(chance, chance.choice(seeds))


def _pull_reply(chance: random.Random) -> bytes:
    """Records whose frame and CRC hold, around compressed bodies that are damaged."""
    records = []
    for _ in range(chance.randrange(1, 4)):
        body = bytearray(
            compress(chance.choice([b"", b"abc" * 100, bytes(5000)]), chance.choice(list(CompressionType)))
        )
        for _ in range(chance.randrange(3)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        message = StoredMessage(
            topic="T" * chance.choice([1, 127, 128, 300]),
            body=bytes(body),
            sys_flag=chance.choice([0, 1, chance.randrange(0x800)]),
            born_host=chance.choice(["1.2.3.4:5", "[::1]:5"]),
            store_host=chance.choice(["1.2.3.4:5", "[::1]:5"]),
            properties={"TAGS": "TagA"},
        )
        records.append(encode_message(message))
    return encode_request(0, 1, {}, b"".join(records))[4:]


def _mutate(chance: random.Random, original: bytes) -> bytes:
    """Damage the payload and frame it anew, so that most damage reaches the decoders behind the frame."""
    payload = bytearray(original[4:])
    header_size = int.from_bytes(payload[1:4])
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        at = chance.randrange(len(payload)) if payload else 0
        size = chance.choice([1, 1, 2, 4, 16])
        kind = chance.randrange(7)
        if kind == 0 and payload:
            payload[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            payload[at : at + size] = chance.randbytes(size)
        elif kind == 2:
            del payload[at : at + size]
        elif kind == 3:
            payload[at:at] = chance.choice(INTERESTING)
        elif kind == 4:
            replacement = chance.choice(INTERESTING)
            payload[at : at + len(replacement)] = replacement
        elif kind == 5:
            del payload[at:]
        else:
            payload[at:at] = payload[at : at + chance.randrange(64)]
    if chance.random() < 0.8 and len(payload) >= 4:
        # keep the header's length right, else nearly all cases would end there
        header_size = max(0, min(len(payload) - 4, header_size + len(payload) - len(original) + 4))
        if chance.random() < 0.5:
            header_size = min(int.from_bytes(original[5:8]), len(payload) - 4)
        payload[1:4] = header_size.to_bytes(3)
    if chance.random() < 0.05:
        return bytes(chance.randbytes(2) + original[2:])
    return _framed(bytes(payload))


def _framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4) + payload


def _feed(data: bytes, chance: random.Random, report: FuzzReport) -> None:
    decoder, at = FrameDecoder(), 0
    while at < len(data):
        size = chance.choice([1, 3, 50, 1000, len(data)])
        try:
            payloads = decoder.feed(data[at : at + size])
        except ProtocolError:
            report.refused += 1
            return
        at += size
        for payload in payloads:
            _decode(payload, report)


def _decode(payload: bytes, report: FuzzReport) -> None:
    try:
        command = decode_command(payload)
    except ProtocolError:
        report.refused += 1
        _try_all(BODIES, payload[4:], report)  # what hides behind a broken header is worth trying too
        return
    report.commands += 1
    _use(command)
    _try_all(BODIES, command.body, report)
    for header in HEADERS:
        _attempt(header.from_ext_fields, command.ext_fields, report)
    _attempt(PullMessageResponseHeader.from_ext_fields, command.ext_fields, report)
    _attempt(SendMessageResponseHeader.from_ext_fields, command.ext_fields, report)
    _attempt(ReceivedSendHeader.from_request, command, report)
    for text in command.ext_fields.values():
        for parse in TEXTS:
            _attempt(parse, text, report)
    try:
        block = decode_messages(command.payload, QUEUE, command.body_start)
    except ProtocolError:
        report.refused += 1
        return
    report.messages += len(block.messages)
    report.corrupt += len(block.corrupt)
    for message in block.messages:
        _read(message)
    for corrupt in block.corrupt:
        _read(corrupt.message)


def _use(command: RemotingCommand) -> None:
    """A decoded command can be shown, logged and sent on."""
    repr(command).encode()
    (command.remark or "").encode()
    assert decode_command(encode_command(command)[4:]).ext_fields == command.ext_fields


def _read(message: Message) -> None:
    """Whatever a handler asks of a message, it gets."""
    for name in dir(Message):
        if not name.startswith("_"):
            getattr(message, name)
    message.has_tag(frozenset({b"TagA"}))
    repr(message).encode()


def _try_all(decoders: Iterable[Callable[[bytes], object]], data: bytes, report: FuzzReport) -> None:
    for decoder in decoders:
        _attempt(decoder, data, report)


def _attempt(decoder: Callable[[Any], object], value: object, report: FuzzReport) -> None:
    try:
        decoder(value)
    except ProtocolError:
        report.refused += 1
    else:
        report.bodies += 1
