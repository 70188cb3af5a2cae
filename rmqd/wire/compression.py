"""Compressed message bodies: ZLIB, LZ4 frames and ZSTD frames, decompressed to a bounded size."""

from __future__ import annotations

import zlib
from typing import Final, NoReturn

from rmqd.errors import ProtocolError
from rmqd.wire.sys_flag import COMPRESSION_MASK, COMPRESSION_SHIFT, CompressionType

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
LEVEL: Final = 5  # Java: rocketmq.message.compressLevel
_LIKELY_RATIO: Final = 32
_MAX_WINDOW_BYTES: Final = MAX_BODY_BYTES


def compress(body: bytes, kind: CompressionType) -> bytes:
    """Compress a body as Java's producer does; `compressed_flag(kind)` are the bits that go with it."""
    if kind is CompressionType.ZLIB:
        return zlib.compress(body, LEVEL)
    # imported late: most topics need neither, and they take time to load
    if kind is CompressionType.LZ4:
        import lz4.frame  # type: ignore[import-untyped]

        return bytes(lz4.frame.compress(body, compression_level=LEVEL))
    import zstandard

    return zstandard.ZstdCompressor(level=LEVEL).compress(body)


def decompress(body: bytes, sys_flag: int, max_size_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Decompress a body whose `sys_flag` has COMPRESSED set; no type bits mean ZLIB, as old producers write it.

    Raises ProtocolError for what is damaged, of an unknown type, or larger than `max_size_bytes`.
    """
    kind = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    if kind in (0, CompressionType.ZLIB):
        plain = _inflate(body, max_size_bytes)
    elif kind == CompressionType.LZ4:
        plain = _decompress_lz4(body, max_size_bytes)
    elif kind == CompressionType.ZSTD:
        plain = _decompress_zstd(body, max_size_bytes)
    else:
        raise ProtocolError(f"the body is compressed with type {kind}; known are 1 (LZ4), 2 (ZSTD), 3 and 0 (ZLIB)")
    if len(plain) > max_size_bytes:
        _too_large(max_size_bytes)
    return plain


def _inflate(body: bytes, max_size_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, max_size_bytes + 1)
    except zlib.error as error:
        raise ProtocolError(f"the body is not a ZLIB stream: {error}") from error
    if not inflater.eof and len(plain) <= max_size_bytes:
        raise ProtocolError("the body is a ZLIB stream that is cut short")
    return plain


def _decompress_lz4(body: bytes, max_size_bytes: int) -> bytes:
    import lz4.frame

    decompressor = lz4.frame.LZ4FrameDecompressor()
    try:
        plain = bytes(decompressor.decompress(body, max_length=max_size_bytes + 1))
    except (RuntimeError, ValueError, EOFError) as error:
        raise ProtocolError(f"the body is not an LZ4 frame: {error}") from error
    if not decompressor.eof and len(plain) <= max_size_bytes:
        raise ProtocolError("the body is an LZ4 frame that is cut short")
    return plain


def _decompress_zstd(body: bytes, max_size_bytes: int) -> bytes:
    import zstandard

    try:
        size = zstandard.get_frame_parameters(body).content_size
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        if size != zstandard.CONTENTSIZE_UNKNOWN:
            if size > max_size_bytes:
                _too_large(max_size_bytes)
            return decompressor.decompress(body)
        # Java writes no size. The output is allocated before it is known, so try a likely size first
        likely = min(max_size_bytes, _LIKELY_RATIO * len(body))
        try:
            return decompressor.decompress(body, max_output_size=likely)
        except zstandard.ZstdError:
            return decompressor.decompress(body, max_output_size=max_size_bytes + 1)
    except zstandard.ZstdError as error:
        raise ProtocolError(f"the body is not a ZSTD frame of at most {max_size_bytes} bytes: {error}") from error


def _too_large(max_size_bytes: int) -> NoReturn:
    raise ProtocolError(f"the body decompresses to more than {max_size_bytes} bytes")
