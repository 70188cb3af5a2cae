"""Compressed bodies, valid and hostile."""

from __future__ import annotations

import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rmqd.errors import ProtocolError
from rmqd.wire.messages.compression import decompress
from rmqd.wire.messages.properties import COMPRESSED, CompressionType
from tests.wire.apart import figures
from tests.wire.compressing import compress, compressed_flag

KINDS = pytest.mark.parametrize("kind", list(CompressionType))
MIB = 1024 * 1024


@given(st.binary(), st.sampled_from(CompressionType))
def test_round_trip(body: bytes, kind: CompressionType) -> None:
    assert decompress(compress(body, kind), compressed_flag(kind)) == body


@KINDS
def test_large_body(kind: CompressionType) -> None:
    body = bytes(range(256)) * 20_000
    assert decompress(compress(body, kind), compressed_flag(kind)) == body


def test_no_type_means_zlib() -> None:
    """Producers before 4.9 set no type bits."""
    assert decompress(zlib.compress(b"body"), COMPRESSED) == b"body"


def test_zstd_frame_without_its_size() -> None:
    """The Java producer writes such frames. The decompressed size may be unusually large."""
    for body in (b"", b"body", bytes(MIB)):
        stream = zstandard.ZstdCompressor().compressobj()
        packed = stream.compress(body) + stream.flush()
        assert decompress(packed, compressed_flag(CompressionType.ZSTD)) == body
    with pytest.raises(ProtocolError, match="more than 1000 bytes"):
        decompress(packed, compressed_flag(CompressionType.ZSTD), 1000)


@KINDS
def test_cut_short(kind: CompressionType) -> None:
    packed = compress(b"0123456789" * 100, kind)
    for size in range(len(packed)):
        with pytest.raises(ProtocolError):
            decompress(packed[:size], compressed_flag(kind))


@KINDS
@given(data=st.binary(max_size=60))
def test_garbage(kind: CompressionType, data: bytes) -> None:
    try:
        decompress(data, compressed_flag(kind))
    except ProtocolError:
        return


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_unknown_type(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"type {kind}"):
        decompress(b"x", COMPRESSED | kind << 8)


@KINDS
def test_limit(kind: CompressionType) -> None:
    packed = compress(bytes(1000), kind)
    assert decompress(packed, compressed_flag(kind), 1000) == bytes(1000)
    with pytest.raises(ProtocolError, match="more than 999 bytes"):
        decompress(packed, compressed_flag(kind), 999)


BOMB = """
import tracemalloc
from rmqd.errors import ProtocolError
from rmqd.wire.messages.compression import decompress
from rmqd.wire.messages.properties import CompressionType
from tests.wire.compressing import compress, compressed_flag

MIB = 1024 * 1024
bombs = {kind: compress(bytes(64 * MIB), kind) for kind in CompressionType}
tracemalloc.start()
for kind, packed in bombs.items():
    tracemalloc.reset_peak()
    try:
        decompress(packed, compressed_flag(kind), 4 * MIB)
    except ProtocolError:
        print(tracemalloc.get_traced_memory()[1])
"""


@pytest.mark.process
def test_bomb_is_defused() -> None:
    """Decompression of a small body that would fill the memory stops at the limit, and uses a few times the limit."""
    peaks = dict(zip(CompressionType, figures(BOMB), strict=True))
    assert not {kind: peak for kind, peak in peaks.items() if peak >= 32 * MIB}


def test_zstd_size_in_the_header_is_not_believed() -> None:
    honest = zstandard.ZstdCompressor().compress(b"x" * 300)
    lying = honest.replace((300 - 256).to_bytes(2, "little"), (0xFFFF).to_bytes(2, "little"), 1)
    assert lying != honest
    with pytest.raises(ProtocolError):
        decompress(lying, compressed_flag(CompressionType.ZSTD))
