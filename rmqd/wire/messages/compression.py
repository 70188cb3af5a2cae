"""Compressed message bodies: ZLIB, LZ4 frames and ZSTD frames, decompressed to a bounded size."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from typing import Final, Protocol

from rmqd.errors import BodyTooLargeError, ProtocolError
from rmqd.wire.messages.sys_flag import COMPRESSION_MASK, COMPRESSION_SHIFT, CompressionType

MAX_BODY_BYTES: Final = 16 * 1024 * 1024  # what `max_body_size` is unless a group sets it; as the largest frame
LEVEL: Final = 5  # Java: rocketmq.message.compressLevel
_LIKELY_RATIO: Final = 32
_MAX_WINDOW_BYTES: Final = 128 * 1024 * 1024  # as in Java: more is refused by libzstd unless it is asked for
_LZ4_SLICE_BYTES: Final = 4 * 1024  # becomes at most 255 times as much
_ZSTD_SLICE_BYTES: Final = 256  # four bytes may become a block of 128 KiB


class _Frame(Protocol):
    """What decompresses one frame, of either library."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, /) -> bytes: ...


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

    Raises ProtocolError for what is damaged or of an unknown type, and BodyTooLargeError for what is larger than
    `max_size_bytes`: that is found out from the size that a frame declares, else as soon as so much is decompressed.
    """
    kind = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    if kind in (0, CompressionType.ZLIB):
        return _inflate(body, max_size_bytes)
    if kind == CompressionType.LZ4:
        return _decompress_lz4(body, max_size_bytes)
    if kind == CompressionType.ZSTD:
        return _decompress_zstd(body, max_size_bytes)
    raise ProtocolError(f"the body is compressed with type {kind}; known are 1 (LZ4), 2 (ZSTD), 3 and 0 (ZLIB)")


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
            # Java writes no size. The output is allocated before it is known, so try a likely size first
            sizes = [min(max_size_bytes, _LIKELY_RATIO * len(body)), max_size_bytes]
        elif size > max_size_bytes:
            raise BodyTooLargeError(max_size_bytes)
        else:
            sizes = [size]
        for most in sizes:
            with contextlib.suppress(zstandard.ZstdError):
                return decompressor.decompress(body, max_output_size=most, allow_extra_data=False)
        # several frames, more than fits, or damage
        return _join_frames(body, _ZSTD_SLICE_BYTES, decompressor.decompressobj, max_size_bytes)
    except zstandard.ZstdError as error:
        raise ProtocolError(f"the body is not a ZSTD frame: {error}") from error


def _join_frames(body: bytes, slice_bytes: int, start: Callable[[], _Frame], max_size_bytes: int) -> bytes:
    """What one frame after the other holds, as Java reads bodies. Raises BodyTooLargeError and ProtocolError.

    Frames are fed slice by slice: one slice cannot become more than a few MiB, and what is left of it after the end of
    a frame is copied for each of many tiny frames.
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
