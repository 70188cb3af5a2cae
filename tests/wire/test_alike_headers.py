"""Replies that are decoded by an earlier one's header say what they say to the decoder of all commands."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.errors import ProtocolError
from rmqd.wire.command import RemotingCommand, decode_command, encode_command
from rmqd.wire.headers.pull_headers import AlikeHeaders, PullMessageResponseHeader
from tests.wire.golden_frames import NAMES, frame
from tests.wire.test_command import payload, same

OFFSETS = ("nextBeginOffset", "minOffset", "maxOffset")
FOUND = {
    "code": 0,
    "extFields": {**PullMessageResponseHeader(41, 7, 90).ext_fields(), "offsetDelta": "0"},
    "flag": 1,
    "language": "JAVA",
    "opaque": 12,
    "remark": "FOUND",
    "version": 513,
}


def compact(header: object) -> str:
    """JSON as brokers write it."""
    return json.dumps(header, separators=(",", ":"))


FRAME = payload(compact(FOUND).encode(), b"body")


def said(payload: bytes, decoder: AlikeHeaders | None = None) -> RemotingCommand | str:
    """What a frame is decoded to, or why it cannot be."""
    try:
        return decode_command(payload) if decoder is None else decoder.decode(payload)
    except ProtocolError as error:
        return str(error)


def agree(decoder: AlikeHeaders, payload: bytes) -> bool:
    """Whether a frame is the same to this decoder and to the one of all commands."""
    mine, plain = said(payload, decoder), said(payload)
    if isinstance(mine, str) or isinstance(plain, str):
        return mine == plain
    return same(mine, plain)


def changed(opaque: int, *numbers: int) -> bytes:
    """The reply with other numbers."""
    fields = {**FOUND["extFields"], **dict(zip(OFFSETS, map(str, numbers), strict=True))}  # type: ignore[dict-item]
    return payload(compact({**FOUND, "opaque": opaque, "extFields": fields}).encode(), b"more")


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("pull_response")])
def test_replies_of_a_real_broker(name: str) -> None:
    """The first of its kind, and others after it."""
    decoder, recorded = AlikeHeaders(), frame(name)[4:]
    assert agree(decoder, recorded)
    assert agree(decoder, recorded)
    first = decoder.decode(recorded)
    for opaque in (0, 7, 2**31 - 1):
        first.opaque = opaque
        assert agree(decoder, encode_command(first)[4:])


def test_a_found_reply_is_decoded_by_the_one_before() -> None:
    """Which is seen by what they share: a decoder of JSON makes each text anew."""
    decoder = AlikeHeaders()
    first, second = decoder.decode(FRAME), decoder.decode(changed(13, 73, 7, 91))
    assert second.remark is first.remark
    assert (second.opaque, second.body) == (13, b"more")
    assert PullMessageResponseHeader.from_ext_fields(second.ext_fields)[:3] == (73, 7, 91)
    assert PullMessageResponseHeader.from_ext_fields(first.ext_fields)[:3] == (41, 7, 90)


@given(*[st.integers(-1, 2**31) | st.integers(0, 2**64)] * 4)
def test_any_numbers(opaque: int, following: int, first: int, end: int) -> None:
    """Those that no command may have too."""
    decoder = AlikeHeaders()
    decoder.decode(FRAME)
    assert agree(decoder, changed(opaque, following, first, end))


@given(st.integers(0, len(FRAME) - 1), st.sampled_from([b"", b"0", b"9", b'"', b"\\", b" ", b",", b"}", b"\xff", b"-"]))
def test_any_damage(at: int, byte: bytes) -> None:
    """To the length of the header too; of what the damaged one teaches no good reply is decoded wrongly."""
    decoder = AlikeHeaders()
    decoder.decode(FRAME)
    for damaged in (FRAME[:at] + byte + FRAME[at + 1 :], FRAME[:at] + byte + FRAME[at:], FRAME[:at]):
        assert agree(decoder, damaged)
        taught = AlikeHeaders()
        said(damaged, taught)
        assert agree(taught, damaged)
        assert agree(taught, FRAME)
        assert agree(taught, changed(13, 73, 7, 91))


def test_a_header_that_is_to_be_longer_than_its_frame() -> None:
    """Though all else is as before."""
    text = compact(FOUND).encode()
    decoder = AlikeHeaders()
    decoder.decode(FRAME)
    assert agree(decoder, (len(text) + 1).to_bytes(4) + text)
    assert agree(decoder, (1 << 24 | len(text)).to_bytes(4) + text)  # a binary header, by its first byte


UNUSUAL = [
    compact({**FOUND, "remark": '"opaque":12,"minOffset":"7"'}),
    compact(FOUND).replace("FOUND", "\u00e9"),
    compact({**FOUND, "minOffset": "7"}),
    compact(FOUND)[:-1] + ',"opaque" : 12}',
    compact(FOUND)[:-1] + ',"opaque":12}',
    compact(FOUND).replace('"7"', "7"),
    compact(FOUND).replace('"7"', '""'),
    compact(FOUND).replace('"7"', '"\u0663"'),
    compact({**FOUND, "extFields": None}),
    compact(FOUND).replace('"minOffset":"7"', '"x\\"minOffset":"7","min\\u004fffset":"7"'),
]


def test_headers_that_no_broker_writes(subtests: pytest.Subtests) -> None:
    """A number may be there twice, or not be one."""
    for header in UNUSUAL:
        with subtests.test(header=header):
            for teacher in (header, compact(FOUND)):
                decoder = AlikeHeaders()
                said(payload(teacher.encode()), decoder)
                for number in ("12", "13", "0", "012", "2147483648", "99999999999"):
                    for one in (header, compact(FOUND)):
                        for changed_header in (one.replace("12", number, 1), one.replace('"7"', f'"{number}"', 1)):
                            assert agree(decoder, payload(changed_header.encode()))


def test_digits_of_another_script_teach_nothing() -> None:
    """They are of several bytes, of which a pattern would keep the last for good."""
    header = compact(FOUND).replace('"7"', '"\u0663"').encode()
    decoder = AlikeHeaders()
    assert agree(decoder, payload(header))
    assert agree(decoder, payload(header.replace("\u0663".encode(), b"5\xa3")))
