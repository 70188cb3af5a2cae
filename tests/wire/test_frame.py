"""The frame decoder, which cuts a byte stream into frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.errors import ProtocolError
from rmqd.wire.command import MAX_FRAME_SIZE_BYTES, FrameDecoder


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4) + payload


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 20), min_size=1))
def test_payloads_do_not_depend_on_the_sizes_of_reads(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, payloads))
    decoder, received, turn = FrameDecoder(), [], 0
    while stream:
        size = cuts[turn % len(cuts)]
        received += decoder.feed(stream[:size])
        stream, turn = stream[size:], turn + 1
    assert received == payloads


def test_a_payload_is_returned_with_its_last_byte() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(framed(b"payload")[:-1]) == []
    assert decoder.feed(b"d" + framed(b"next")) == [b"payload", b"next"]


def test_largest_frame_is_read() -> None:
    payload = bytes(MAX_FRAME_SIZE_BYTES)
    assert FrameDecoder().feed(framed(payload)) == [payload]


@pytest.mark.parametrize("length", [MAX_FRAME_SIZE_BYTES + 1, 2**31, 2**32 - 1])
def test_a_too_large_frame_is_refused_after_its_four_length_bytes(length: int) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(length.to_bytes(4)[:3]) == []
    with pytest.raises(ProtocolError, match=f"frame of {length} bytes"):
        decoder.feed(length.to_bytes(4)[3:])


def test_limit_can_be_lowered() -> None:
    decoder = FrameDecoder(max_frame_size_bytes=10)
    assert decoder.feed(framed(bytes(10))) == [bytes(10)]
    with pytest.raises(ProtocolError):
        decoder.feed(framed(bytes(11)))
