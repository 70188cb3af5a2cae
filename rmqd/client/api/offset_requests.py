"""Requests for the offsets of a queue: a group's committed offset, and the queue's ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypedDict

from rmqd.client.api.pull_requests import read_records
from rmqd.client.api.remoting_request import REQUEST_TIMEOUT_SECONDS, request
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.errors.broker_errors import NoPermissionError, QueryNotFoundError
from rmqd.wire.headers.group_headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmqd.wire.headers.request_header import RequestHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages

PENDING_RESET_REMARK: Final = "Offset has been previously reset"
NEW_GROUPS_SINCE_VERSION: Final = 412  # V5_0_0_SNAPSHOT: the first broker version that respects setZeroIfNotFound
EXACT_SEARCH_SINCE_VERSION: Final = 473  # V5_3_0: the first broker version whose search by time is exact


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A group's stored offset in a queue.

    `is_certain` is False for a 0 from a 4.x broker. Such a broker also returns 0 if the group has no offset, until the
    queue's first messages are deleted.
    """

    offset: int
    is_certain: bool


async def query_consumer_offset(remoting: RemotingClient, address: str, group: str, queue: MessageQueue) -> int | None:
    """Return the group's stored offset in a queue; None if it never committed. An uncertain 0 counts as an offset."""
    found = await query_stored_offset(remoting, address, group, queue)
    return None if found is None else found.offset


async def query_stored_offset(
    remoting: RemotingClient,
    address: str,
    group: str,
    queue: MessageQueue,
    *,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> StoredOffset | None:
    """Return the group's stored offset in a queue, and whether it is certain; None if the group has no offset.

    An offset below 0, which groups may commit, has no meaning and counts as no offset. The request sets
    setZeroIfNotFound=false. Otherwise a 5.x broker would also return 0 if the group has no offset.
    """
    header = QueryConsumerOffsetRequestHeader(consumer_group=group, set_zero_if_not_found=False, **_queue_fields(queue))
    try:
        reply = await request(remoting, address, header, timeout_seconds=timeout_seconds)
    except QueryNotFoundError:
        return None
    offset = OffsetResponseHeader.from_ext_fields(reply.ext_fields).offset
    return StoredOffset(offset, offset > 0 or reply.version >= NEW_GROUPS_SINCE_VERSION) if offset >= 0 else None


async def update_consumer_offset(
    remoting: RemotingClient,
    address: str,
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> bool:
    """Commit an offset for the group. The broker accepts any value, even one below the stored offset.

    Returns False if the broker reports success but stores nothing. This happens while an operator's reset waits for the
    group's next pull of the queue.
    """
    header = UpdateConsumerOffsetRequestHeader(consumer_group=group, commit_offset=offset, **_queue_fields(queue))
    reply = await request(remoting, address, header, timeout_seconds=timeout_seconds)
    return reply.remark != PENDING_RESET_REMARK


async def get_max_offset(remoting: RemotingClient, address: str, queue: MessageQueue) -> int:
    """Return the queue's end, which is the offset of its next message."""
    return await _offset(remoting, address, GetMaxOffsetRequestHeader(**_queue_fields(queue)))


async def get_min_offset(remoting: RemotingClient, address: str, queue: MessageQueue) -> int:
    """Return the offset of the queue's oldest message."""
    return await _offset(remoting, address, GetMinOffsetRequestHeader(**_queue_fields(queue)))


async def search_offset(remoting: RemotingClient, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
    """Return the offset of the first message stored at or after `timestamp_ms`, or the queue's end if there is none.

    Brokers before 5.3 return the nearest message, even if it is older, and any of several messages with the same
    millisecond (apache/rocketmq#7961, #4890). So this function reads the store times of messages around the returned
    offset. Without permission to read the topic, it returns the broker's offset unchecked.
    """
    header = SearchOffsetRequestHeader(timestamp=timestamp_ms, boundary_type="lower", **_queue_fields(queue))
    reply = await request(remoting, address, header)
    found = OffsetResponseHeader.from_ext_fields(reply.ext_fields).offset
    if reply.version >= EXACT_SEARCH_SINCE_VERSION:
        return found
    try:
        at = await store_time_at(remoting, address, queue, found)
        if 0 <= at < timestamp_ms:
            return found + 1
        while found and at == timestamp_ms and await store_time_at(remoting, address, queue, found - 1) == timestamp_ms:
            found -= 1
    except NoPermissionError:
        pass
    return found


async def store_time_at(remoting: RemotingClient, address: str, queue: MessageQueue, offset: int) -> int:
    """Return the store time of the message at an offset (Unix milliseconds); -1 if there is no such message."""
    part = await read_records(remoting, address, queue, offset, 1)
    messages = decode_messages(part.records, queue).messages
    return next((message.store_timestamp for message in messages if message.queue_offset == offset), -1)


async def earliest_store_time(remoting: RemotingClient, address: str, queue: MessageQueue) -> int | None:
    """Return the store time of the queue's oldest message (Unix milliseconds); None if the queue is empty."""
    reply = await request(remoting, address, GetEarliestMsgStoretimeRequestHeader(**_queue_fields(queue)))
    timestamp_ms = GetEarliestMsgStoretimeResponseHeader.from_ext_fields(reply.ext_fields).timestamp
    return timestamp_ms if timestamp_ms >= 0 else None


class _QueueFields(TypedDict):
    """The header fields that identify a queue."""

    topic: str
    queue_id: int
    bname: str


def _queue_fields(queue: MessageQueue) -> _QueueFields:
    return {"topic": queue.topic, "queue_id": queue.queue_id, "bname": queue.broker_name}


async def _offset(remoting: RemotingClient, address: str, header: RequestHeader) -> int:
    reply = await request(remoting, address, header)
    return OffsetResponseHeader.from_ext_fields(reply.ext_fields).offset
