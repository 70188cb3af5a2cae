"""Compresses bodies as Java's producer does."""

from __future__ import annotations

import zlib
from typing import Final

import lz4.frame  # type: ignore[import-untyped]
import zstandard

from rmqd.wire.messages.properties import COMPRESSED, COMPRESSION_SHIFT, CompressionType

LEVEL: Final = 5  # Java: rocketmq.message.compressLevel


def compress(body: bytes, kind: CompressionType) -> bytes:
    """Return the compressed body. `compressed_flag(kind)` returns the bits to set."""
    if kind is CompressionType.ZLIB:
        return zlib.compress(body, LEVEL)
    if kind is CompressionType.LZ4:
        return bytes(lz4.frame.compress(body, compression_level=LEVEL))
    return zstandard.ZstdCompressor(level=LEVEL).compress(body)


def compressed_flag(kind: CompressionType) -> int:
    """Return the bits that mark a body as compressed with this type."""
    return COMPRESSED | kind << COMPRESSION_SHIFT
