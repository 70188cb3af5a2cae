"""The optional native core, which decodes every frame to the same values as the Python code."""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest

from rmqd.wire import core
from rmqd.wire.command import encode_request
from rmqd.wire.messages import decode
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.message import Message
from tests.wire.cores import assert_cores_agree, use_core
from tests.wire.golden_frames import NAMES, frame

STORED = StoredMessage(topic="T", body=b"0123456789", properties={"A": "b"}, queue_offset=7)
HEADERS = (
    b"{}",
    b'{"code":0,"opaque":1}',
    b'{"code":0,"opaque":1,"flag":1,"version":513,"language":"JAVA","remark":"FOUND","extFields":{"a":"1","b":""}}',
    b'{"code":0,"opaque":1,"extFields":{}}',
    b'{"code":0,"opaque":1,"extFields":{"a":"1","a":"2"},"code":5}',
    b'{"code":2147483647,"opaque":2147483648}',
    b'{"code":-1,"opaque":1}',
    b'{"code":0,"opaque":01}',
    b'{"code":0,"opaque":1,"language":"JAVA","unknown":"x","flag":null}',
    b'{"code":0,"opaque":1,"unknown":{"a":[1]}}',
    b'{"code":0,"opaque":1,"remark":"\\u00e4\\n","extFields":{"a":"\\""}}',
    '{"code":0,"opaque":1,"remark":"ä","extFields":{"ä":"x\x7f"}}'.encode(),
    b'{"code":0,"opaque":1,"remark":"\n"}',
    b'{"code":"0","opaque":1,"flag":true,"extFields":{"a":1,"b":null,"c":true}}',
    b' {"code":0, "opaque":1} ',
    b'{"code":0,"opaque":1,}',
    b'{"code":0,"opaque":1}}',
    b'[{"code":0,"opaque":1}]',
)


def test_recorded_frames(subtests: pytest.Subtests) -> None:
    """Unchanged, cut short, and with changed bytes."""
    chance = Random(1)
    for name in NAMES:
        payload = frame(name)[4:]
        with subtests.test(name=name):
            assert_cores_agree(payload)
            for _ in range(20):
                assert_cores_agree(payload[: chance.randrange(len(payload))])
                changed = bytearray(payload)
                changed[chance.randrange(len(payload))] = chance.choice([0x22, 0x30, 0x80, chance.randrange(256)])
                assert_cores_agree(bytes(changed))


@pytest.mark.parametrize("header", HEADERS)
def test_headers(header: bytes) -> None:
    """Plain, other valid, and invalid headers, each also cut short at every byte."""
    for size in range(len(header) + 1):
        assert_cores_agree(size.to_bytes(4) + header)


def test_records() -> None:
    """Every bit of a record is flipped, alone and between plain records. The last record is cut short at every byte."""
    good = [encode_message(replace(STORED, queue_offset=at)) for at in (6, 8)]
    record = encode_message(STORED)
    head = encode_request(0, 1, {})[4:]
    for bit in range(8 * len(record)):
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << bit % 8
        assert_cores_agree(head + good[0] + changed + good[1])
        assert_cores_agree(head + changed)
    for size in range(len(record)):
        assert_cores_agree(head + good[0] + record[:size])


def test_other_records() -> None:
    """Both cores count the same runs of offsets, also at the ends of the range and after the native core stops."""
    v6 = {"born_host": "[::1]:1", "store_host": "[::1]:1"}
    odd: list[dict[str, Any]] = [{}, v6, {"sys_flag": 1}, {"sys_flag": 0x1000}, {"topic": "T" * 200}, {"body": b""}]
    for offsets in ((-1, 0, 1), (3, 4, 5), (3, 3, 4), (2**63 - 2, 2**63 - 1, -(2**63)), (2**63 - 1, 0, 1)):
        for fields in odd:
            stored = [replace(STORED, queue_offset=at) for at in offsets]
            stored[1] = replace(stored[1], **fields)
            assert_cores_agree(encode_request(0, 1, {})[4:] + b"".join(map(encode_message, stored)))


def test_the_native_core_refuses_wrong_arguments(native: core.NativeCore) -> None:
    """It writes only to messages, and reads only the given bytes."""
    record = encode_message(STORED)
    wrong: list[tuple[Any, ...]] = [
        (),
        (int, (), None, record, 0, [], 0),
        (object, (object.__doc__,) * 7, None, record, 0, [], 0),
        (object, (vars(StoredMessage)["topic"],) * 7, None, record, 0, [], 0),  # the slot of another class
        (Message, decode._SLOTS, None, record, -1, [], 0),
        (Message, decode._SLOTS, None, "text", 0, [], 0),
        (Message, decode._SLOTS, None, record, 0, (), 0),
    ]
    for arguments in wrong:
        with pytest.raises((TypeError, ValueError, IndexError, SystemError)):
            native.frame_plain(*arguments)
    for end in (-1, 3, len(record) + 1):
        with pytest.raises(ValueError, match="outside of the frame"):
            native.decode_header(record, end)


def test_an_installation_without_a_compiler_uses_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rmqd.wire.native", None)
    with use_core(core.load_native_core()):
        assert core.core_name() == "python"


def test_an_environment_variable_or_another_version_turns_the_native_core_off(monkeypatch: pytest.MonkeyPatch) -> None:
    built = SimpleNamespace(source_crc=crc32(core.NATIVE_SOURCE.read_bytes()))
    monkeypatch.setitem(sys.modules, "rmqd.wire.native", built)
    monkeypatch.delenv("RMQD_CORE", raising=False)
    assert core.load_native_core() is built
    monkeypatch.setenv("RMQD_CORE", "python")
    assert core.load_native_core() is None
    monkeypatch.delenv("RMQD_CORE")
    built.source_crc ^= 1  # built from another version of the source
    assert core.load_native_core() is None
