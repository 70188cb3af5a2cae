"""Bits of the two `sysFlag` fields. Plain integers: these are tested once for every message."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

# a stored message's sysFlag
COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_MASK: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
COMPRESSION_MASK: Final = 0x700
COMPRESSION_SHIFT: Final = 8
KNOWN: Final = 0x7FF  # all of the bits above
CLOSED: Final = COMPRESSED | NEED_UNWRAP  # the stored body is not what a handler is to see


class CompressionType(IntEnum):
    """The three bits of a message's sysFlag that name its compression."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


class PullSysFlag:
    """The bits of a pull request."""

    COMMIT_OFFSET: Final = 0x1
    """Store `commitOffset` for the group, whatever the pull finds."""
    SUSPEND: Final = 0x2
    """Hold the request until there is a message (long polling)."""
    SUBSCRIPTION: Final = 0x4
    """The expression is in the request; no heartbeat is needed."""
    CLASS_FILTER: Final = 0x8
    LITE_PULL: Final = 0x10


def compressed_flag(kind: CompressionType) -> int:
    """The bits that mark a body as compressed this way."""
    return COMPRESSED | kind << COMPRESSION_SHIFT
