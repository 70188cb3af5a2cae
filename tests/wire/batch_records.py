"""Records of topics with queue.type=BatchCQ. Each record holds a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rmqd.wire.messages.encode import BatchMember, StoredMessage, encode_batch
from rmqd.wire.messages.properties import INNER_BATCH, NEED_UNWRAP, CompressionType
from tests.wire.compressing import compress, compressed_flag


def batch_of(
    members: Sequence[BatchMember], base: int, stored: StoredMessage, kind: CompressionType | None = None
) -> StoredMessage:
    """Return a broker's record of a batch whose first member has the queue offset `base`; other fields as `stored`."""
    body = encode_batch(members)
    flags = INNER_BATCH | NEED_UNWRAP
    if kind is not None:
        body, flags = compress(body, kind), flags | compressed_flag(kind)
    told = {"UNIQ_KEY": "0A", "INNER_NUM": str(len(members)), "INNER_BASE": str(base)}
    return replace(stored, body=body, queue_offset=base, sys_flag=stored.sys_flag | flags, properties=told)
