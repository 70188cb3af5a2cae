"""Bits of the two `sysFlag` fields. They are plain integers, because they are tested for every message."""

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
CLOSED: Final = COMPRESSED | NEED_UNWRAP  # the stored body must be opened before a handler sees it


class CompressionType(IntEnum):
    """The three bits of a message's sysFlag that name its compression."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


class PullSysFlag:
    """The bits of a pull request."""

    COMMIT_OFFSET: Final = 0x1
    """Store `commitOffset` for the group, whether or not the pull finds messages."""
    SUSPEND: Final = 0x2
    """Hold the request until a message arrives (long polling)."""
    SUBSCRIPTION: Final = 0x4
    """The request contains the expression, so no heartbeat is needed."""
    CLASS_FILTER: Final = 0x8
    LITE_PULL: Final = 0x10


def compressed_flag(kind: CompressionType) -> int:
    """Return the bits that mark a body as compressed with this type."""
    return COMPRESSED | kind << COMPRESSION_SHIFT
