"""A queue's offsets: what a group has committed, and what the broker holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from rmqd.client.api.request import REQUEST_TIMEOUT_SECONDS, request
from rmqd.errors import QueryNotFoundError
from rmqd.wire.headers.offset import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

if TYPE_CHECKING:
    from rmqd.client.remoting.client import RemotingClient
    from rmqd.wire.headers.base import RequestHeader
    from rmqd.wire.message_queue import MessageQueue

RESET_WAITS: Final = "Offset has been previously reset"
TELLS_NEW_GROUPS: Final = 412  # V5_0_0_SNAPSHOT: since then setZeroIfNotFound is heeded


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A group's offset on a queue. A broker of 4.x also says 0 for a young queue without one, so 0 is not certain."""

    offset: int
    is_certain: bool


async def query_consumer_offset(
    remoting: RemotingClient,
    address: str,
    group: str,
    queue: MessageQueue,
    *,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> int | None:
    """The group's committed offset on a queue, or None where it never committed."""
    found = await query_stored_offset(remoting, address, group, queue, timeout_seconds=timeout_seconds)
    return None if found is None else found.offset


async def query_stored_offset(
    remoting: RemotingClient,
    address: str,
    group: str,
    queue: MessageQueue,
    *,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> StoredOffset | None:
    """The same, with whether it is certain. An offset below 0 is none: groups may commit it, and it means nothing.

    Asks with setZeroIfNotFound=false: otherwise the broker answers 0 for a new group on a young queue.
    """
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        set_zero_if_not_found=False,
        bname=queue.broker_name,
    )
    try:
        reply = await request(remoting, address, header, timeout_seconds=timeout_seconds)
    except QueryNotFoundError:
        return None
    offset = OffsetResponseHeader.from_ext_fields(reply.ext_fields).offset
    return StoredOffset(offset, offset > 0 or reply.version >= TELLS_NEW_GROUPS) if offset >= 0 else None


async def update_consumer_offset(
    remoting: RemotingClient,
    address: str,
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> bool:
    """Commit an offset for the group and wait for the answer. The broker takes any value, a lower one too.

    False where it says success and stores nothing: an operator's reset waits for the group's next pull of the queue.
    """
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=offset,
        bname=queue.broker_name,
    )
    reply = await request(remoting, address, header, timeout_seconds=timeout_seconds)
    return reply.remark != RESET_WAITS


async def get_max_offset(remoting: RemotingClient, address: str, queue: MessageQueue) -> int:
    """The offset that the queue's next message will get."""
    header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name)
    return await _offset(remoting, address, header)


async def get_min_offset(remoting: RemotingClient, address: str, queue: MessageQueue) -> int:
    """The offset of the oldest message that the queue still holds."""
    header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name)
    return await _offset(remoting, address, header)


async def search_offset(
    remoting: RemotingClient,
    address: str,
    queue: MessageQueue,
    timestamp_ms: int,
    *,
    boundary: Literal["lower", "upper"] = "lower",
) -> int:
    """The offset of the first message stored at or after a Unix time in milliseconds."""
    header = SearchOffsetRequestHeader(
        topic=queue.topic,
        queue_id=queue.queue_id,
        timestamp=timestamp_ms,
        boundary_type=boundary,
        bname=queue.broker_name,
    )
    return await _offset(remoting, address, header)


async def earliest_store_time(remoting: RemotingClient, address: str, queue: MessageQueue) -> int | None:
    """When the queue's oldest message was stored (Unix milliseconds); None for an empty queue."""
    header = GetEarliestMsgStoretimeRequestHeader(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name)
    reply = await request(remoting, address, header)
    timestamp_ms = GetEarliestMsgStoretimeResponseHeader.from_ext_fields(reply.ext_fields).timestamp
    return timestamp_ms if timestamp_ms >= 0 else None


async def _offset(remoting: RemotingClient, address: str, header: RequestHeader) -> int:
    reply = await request(remoting, address, header)
    return OffsetResponseHeader.from_ext_fields(reply.ext_fields).offset
