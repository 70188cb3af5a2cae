"""Remoting commands in both header serialisations."""

from __future__ import annotations

import contextlib
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.codes import LanguageCode, RequestCode, ResponseCode, SerializeType
from rmqd.errors import ProtocolError
from rmqd.wire.command import RemotingCommand, decode_command, encode_command, encode_request, encode_response
from tests.wire.golden_frames import NAMES, command

pytestmark = pytest.mark.usefixtures("each_core")
INT = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(max_size=30)
FIELDS = st.dictionaries(TEXT, TEXT, max_size=5)
LANGUAGES = st.sampled_from(LanguageCode)


def payload(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(4) + text + body


def same(left: RemotingCommand, right: RemotingCommand) -> bool:
    names = ("code", "opaque", "flag", "language", "version", "remark", "ext_fields", "body")
    return all(getattr(left, name) == getattr(right, name) for name in names)


@given(INT, INT, st.integers(0, 3), FIELDS, st.binary(max_size=50), st.none() | TEXT, LANGUAGES, INT)
def test_json_header_round_trip(
    code: int,
    opaque: int,
    flag: int,
    ext_fields: dict[str, str],
    body: bytes,
    remark: str | None,
    language: LanguageCode,
    version: int,
) -> None:
    sent = RemotingCommand(code, opaque, flag, ext_fields, body, 0, remark, language, version)
    assert same(decode_command(encode_command(sent)[4:]), sent)


@given(
    st.integers(-(2**15), 2**15 - 1),
    INT,
    st.integers(0, 3),
    FIELDS,
    st.binary(max_size=50),
    st.none() | TEXT,
    LANGUAGES,
)
def test_binary_header_is_decoded(
    code: int,
    opaque: int,
    flag: int,
    ext_fields: dict[str, str],
    body: bytes,
    remark: str | None,
    language: LanguageCode,
) -> None:
    sent = RemotingCommand(code, opaque, flag, ext_fields, body, 0, remark or None, language, 513)
    texts = [text.encode() for pair in ext_fields.items() for text in pair]
    fields = b"".join(len(text).to_bytes(2 + 2 * (at % 2)) + text for at, text in enumerate(texts))
    told = (remark or "").encode()
    fixed = struct.pack(">hBhiii", code, language, 513, opaque, flag, len(told))
    header = fixed + told + len(fields).to_bytes(4) + fields
    assert same(decode_command(b"\1" + len(header).to_bytes(3) + header + body), sent)


def test_recorded_frames_are_the_same_after_encoding(subtests: pytest.Subtests) -> None:
    for name in NAMES:
        with subtests.test(name=name):
            assert same(decode_command(encode_command(command(name))[4:]), command(name))


def test_binary_and_json_headers_have_the_same_fields() -> None:
    binary, plain = command("pull_request_rocketmq_header"), command("pull_request")
    assert (binary.code, binary.ext_fields, binary.language) == (plain.code, plain.ext_fields, plain.language)


def test_request_has_the_format_that_java_reads() -> None:
    sent = encode_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, 7, {"topic": 'a"b'}, b"body")
    length, header_size = int.from_bytes(sent[:4]), int.from_bytes(sent[5:8])
    assert length == len(sent) - 4
    assert sent[4] == SerializeType.JSON
    assert json.loads(sent[8 : 8 + header_size]) == {
        "code": 105, "flag": 0, "language": "PYTHON", "opaque": 7, "version": 513, "extFields": {"topic": 'a"b'},
    }  # fmt: skip
    assert sent[8 + header_size :] == b"body"


def test_oneway_request_is_marked() -> None:
    decoded = decode_command(encode_request(15, 1, {}, oneway=True)[4:])
    assert decoded.is_oneway
    assert not decoded.is_response
    assert decoded.ext_fields == {}


def test_response_has_the_opaque_of_its_request() -> None:
    request = decode_command(encode_request(34, 4711, {})[4:])
    answer = decode_command(encode_response(request, ResponseCode.SYSTEM_ERROR, "no", {"a": "b"}, b"x")[4:])
    assert answer.is_response
    assert (answer.opaque, answer.code, answer.remark) == (4711, 1, "no")
    assert (answer.ext_fields, answer.body) == ({"a": "b"}, b"x")


def test_frame_that_is_too_large_for_peers_is_not_written() -> None:
    with pytest.raises(ProtocolError, match="16777216"):
        encode_request(10, 1, {}, bytes(16 * 1024 * 1024))


def test_values_that_are_not_strings_become_strings_as_in_java() -> None:
    header = {"code": 0, "opaque": 1, "extFields": {"n": 5, "f": 0.5, "t": True, "none": None, "s": "x"}}
    assert decode_command(payload(header)).ext_fields == {"n": "5", "f": "0.5", "t": "true", "s": "x"}


@pytest.mark.parametrize(
    "header",
    [
        rb'{"code":0,"opaque":1,"remark":"a\ud800","extFields":{"k\udfff":"\ud83d\ude00"}}',
        rb'{"code":0,"opaque":1,"remark":"a\uD800","extFields":{"k\uDFFF":"\uD83D\uDE00"}}',
    ],
)
def test_lone_surrogates_become_question_marks(header: bytes) -> None:
    decoded = decode_command(payload(header))
    assert decoded.remark == "a?"
    assert decoded.ext_fields == {"k?": "\U0001f600"}


def test_unknown_language_and_blanks_are_accepted() -> None:
    decoded = decode_command(payload(b' {"code": 5, "opaque": 1, "language": "KLINGON"} \n'))
    assert decoded.language is LanguageCode.OTHER
    assert (decoded.flag, decoded.version, decoded.remark, decoded.ext_fields) == (0, 0, None, {})


BROKEN = {
    "nothing": b"",
    "three bytes": b"\0\0\0",
    "header longer than the frame": b"\0\0\0\5{}",
    "serialize type 2": b"\2\0\0\0",
    "empty JSON header": b"\0\0\0\0",
    "not UTF-8": payload(b'{"code":0,"opaque":1,"remark":"\xff"}'),
    "a list": payload([1]),
    "a number": payload(5),
    "text after it": payload(b'{"code":0,"opaque":1}x'),
    "no code": payload({"opaque": 1}),
    "no opaque": payload({"code": 1}),
    "code of 33 bits": payload({"code": 2**32, "opaque": 1}),
    "opaque of 33 bits": payload({"code": 1, "opaque": 2**32}),
    "flag of 33 bits": payload({"code": 1, "opaque": 1, "flag": 2**31}),
    "boolean code": payload({"code": True, "opaque": 1}),
    "boolean flag": payload({"code": 1, "opaque": 1, "flag": True}),
    "boolean version": payload({"code": 1, "opaque": 1, "version": False}),
    "text as code": payload({"code": "1", "opaque": 1}),
    "NaN": payload(b'{"code":NaN,"opaque":1}'),
    "number of 5000 digits": payload(b'{"code":' + b"1" * 5000 + b',"opaque":1}'),
    "nested 100,000 deep": payload(b"[" * 100_000),
    "ext fields in a list": payload({"code": 1, "opaque": 1, "extFields": ["a"]}),
    "ext fields in a text": payload({"code": 1, "opaque": 1, "extFields": "a"}),
    "ext field that is a list": payload({"code": 1, "opaque": 1, "extFields": {"a": [1]}}),
    "remark that is an object": payload({"code": 1, "opaque": 1, "remark": {}}),
    "language that is a list": payload({"code": 1, "opaque": 1, "language": []}),
    "binary header cut short": b"\1\0\0\4" + bytes(4),
    "binary header with a long remark": b"\1\0\0\x19" + bytes(13) + (2**31 - 1).to_bytes(4) + bytes(8),
    "header one byte longer than the frame": b"\0\0\0\x17" + b'{"code":0,"opaque":1}',
    "binary header whose field steps back": b"\1\0\0\x21"
    + bytes(17)
    + b"\0\0\0\x0c"
    + bytes(2)
    + b"\xff\xff\xff\xfa"
    + bytes(6),
    "binary header with a negative remark": b"\1\0\0\x19" + bytes(13) + b"\xff" * 4 + bytes(8),
    "binary header with a long map": b"\1\0\0\x19" + bytes(17) + b"\0\0\0\5" + bytes(4),
    "binary header with a field past its map": b"\1\0\0\x1b" + bytes(17) + b"\0\0\0\1" + bytes(6),
}


def test_broken_header_is_a_protocol_error(subtests: pytest.Subtests) -> None:
    for name, data in BROKEN.items():
        with subtests.test(name), pytest.raises(ProtocolError):
            decode_command(data)


@given(st.binary(max_size=80))
def test_any_header_is_decoded_or_a_protocol_error(data: bytes) -> None:
    for serialize_type in SerializeType:
        with contextlib.suppress(ProtocolError):
            decode_command(bytes([serialize_type]) + len(data).to_bytes(3) + data)


def test_unknown_codes_have_a_name() -> None:
    assert ResponseCode(4711).name == "UNKNOWN_4711"
    assert ResponseCode(4711) == 4711
    assert RequestCode(200077).name == "UNKNOWN_200077"
