"""Compressed message bodies: ZLIB, LZ4 frames and ZSTD frames, decompressed to a bounded size."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from typing import Final, Protocol

from rmqd.errors import BodyTooLargeError, ProtocolError
from rmqd.wire.messages.sys_flag import COMPRESSION_MASK, COMPRESSION_SHIFT, CompressionType

MAX_BODY_BYTES: Final = 16 * 1024 * 1024  # the default of `max_body_size`; also the largest frame
LEVEL: Final = 5  # Java: rocketmq.message.compressLevel
_LIKELY_RATIO: Final = 32
_MAX_WINDOW_BYTES: Final = 128 * 1024 * 1024  # as in Java; libzstd rejects larger windows by default
_LZ4_SLICE_BYTES: Final = 4 * 1024  # decompresses to at most 255 times as much
_ZSTD_SLICE_BYTES: Final = 256  # four bytes may decompress to a block of 128 KiB


class _Frame(Protocol):
    """The decompressor of one frame, in either library."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def compress(body: bytes, kind: CompressionType) -> bytes:
    """Compress a body as Java's producer does. `compressed_flag(kind)` gives the bits to set."""
    if kind is CompressionType.ZLIB:
        return zlib.compress(body, LEVEL)
    # imported late: most topics need neither library, and they take time to load
    if kind is CompressionType.LZ4:
        import lz4.frame  # type: ignore[import-untyped]

        return bytes(lz4.frame.compress(body, compression_level=LEVEL))
    import zstandard

    return zstandard.ZstdCompressor(level=LEVEL).compress(body)


def decompress(body: bytes, sys_flag: int, max_size_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Decompress a body whose `sys_flag` has COMPRESSED set. Without type bits it is ZLIB, as old producers write it.

    Raises ProtocolError for damage or an unknown type. Raises BodyTooLargeError if the body exceeds `max_size_bytes`,
    either at the size that the frame declares, or as soon as that much is decompressed.
    """
    kind = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    if kind in (0, CompressionType.ZLIB):
        return _inflate(body, max_size_bytes)
    if kind == CompressionType.LZ4:
        return _decompress_lz4(body, max_size_bytes)
    if kind == CompressionType.ZSTD:
        return _decompress_zstd(body, max_size_bytes)
    raise ProtocolError(f"the body has compression type {kind}; expected 1 (LZ4), 2 (ZSTD), 3 or 0 (ZLIB)")


def _inflate(body: bytes, max_size_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, max_size_bytes + 1)
    except zlib.error as error:
        raise ProtocolError(f"the body is not a ZLIB stream: {error}") from error
    if len(plain) > max_size_bytes:
        raise BodyTooLargeError(max_size_bytes)
    if not inflater.eof:
        raise ProtocolError("the body is a ZLIB stream that is cut short")
    return plain


def _decompress_lz4(body: bytes, max_size_bytes: int) -> bytes:
    import lz4.frame

    decompressor = lz4.frame.LZ4FrameDecompressor()
    try:
        plain = bytes(decompressor.decompress(body, max_length=max_size_bytes + 1))
        if len(plain) > max_size_bytes:
            raise BodyTooLargeError(max_size_bytes)
        if not decompressor.eof:
            raise ProtocolError("the body is an LZ4 frame that is cut short")
        if not decompressor.unused_data:
            return plain
        return _join_frames(body, _LZ4_SLICE_BYTES, lz4.frame.LZ4FrameDecompressor, max_size_bytes)
    except (RuntimeError, ValueError, EOFError) as error:
        raise ProtocolError(f"the body is not an LZ4 frame: {error}") from error


def _decompress_zstd(body: bytes, max_size_bytes: int) -> bytes:
    import zstandard

    try:
        size = zstandard.get_frame_parameters(body).content_size
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        if size == zstandard.CONTENTSIZE_UNKNOWN:
            # Java writes no size. The output is allocated before its size is known, so try a likely size first.
            sizes = [min(max_size_bytes, _LIKELY_RATIO * len(body)), max_size_bytes]
        elif size > max_size_bytes:
            raise BodyTooLargeError(max_size_bytes)
        else:
            sizes = [size]
        for most in sizes:
            with contextlib.suppress(zstandard.ZstdError):
                return decompressor.decompress(body, max_output_size=most, allow_extra_data=False)
        # several frames, a body over the limit, or damage
        return _join_frames(body, _ZSTD_SLICE_BYTES, decompressor.decompressobj, max_size_bytes)
    except zstandard.ZstdError as error:
        raise ProtocolError(f"the body is not a ZSTD frame: {error}") from error


def _join_frames(body: bytes, slice_bytes: int, start: Callable[[], _Frame], max_size_bytes: int) -> bytes:
    """Decompress one frame after the other, as Java reads bodies. Raises BodyTooLargeError and ProtocolError.

    Frames are fed in slices. One slice cannot become more than a few MiB, and slices limit how much input is copied
    again after the end of each tiny frame.
    """
    parts: list[bytes] = []
    size, frame = 0, start()
    for at in range(0, len(body), slice_bytes):
        rest = body[at : at + slice_bytes]
        while rest:
            if frame.eof:
                frame = start()
            part = frame.decompress(rest)
            size += len(part)
            if size > max_size_bytes:
                raise BodyTooLargeError(max_size_bytes)
            parts.append(part)
            rest = frame.unused_data or b"" if frame.eof else b""
    if not frame.eof:
        raise ProtocolError("the last frame of the body is cut short")
    return b"".join(parts)
