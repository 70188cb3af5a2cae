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
NEW_GROUPS_SINCE_VERSION: Final = 412  # V5_0_0_SNAPSHOT: the first version of brokers that heeds setZeroIfNotFound
EXACT_SEARCH_SINCE_VERSION: Final = 473  # V5_3_0


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A group's stored offset in a queue.

    A 4.x broker returns 0 also for a queue without an offset, until messages of the queue are deleted. Such a 0 is not
    certain.
    """

    offset: int
    is_certain: bool


async def query_consumer_offset(remoting: RemotingClient, address: str, group: str, queue: MessageQueue) -> int | None:
    """Return the group's committed offset in a queue, or None if it never committed."""
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
    """Return the group's offset in a queue, and whether it is certain. None if it has no offset, or an offset below 0.

    A group may commit an offset below 0, which has no meaning. The request sets setZeroIfNotFound=false; otherwise a
    5.x broker also returns 0 for a queue without an offset.
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
    """Commit an offset for the group, and wait for the response. The broker accepts any value, also a lower one.

    Returns False if the broker responds with success but stores nothing. It does so while an operator's reset waits for
    the group's next pull of the queue.
    """
    header = UpdateConsumerOffsetRequestHeader(consumer_group=group, commit_offset=offset, **_queue_fields(queue))
    reply = await request(remoting, address, header, timeout_seconds=timeout_seconds)
    return reply.remark != PENDING_RESET_REMARK


async def get_max_offset(remoting: RemotingClient, address: str, queue: MessageQueue) -> int:
    """Return the offset of the queue's next message."""
    return await _offset(remoting, address, GetMaxOffsetRequestHeader(**_queue_fields(queue)))


async def get_min_offset(remoting: RemotingClient, address: str, queue: MessageQueue) -> int:
    """Return the offset of the oldest message that the queue still holds."""
    return await _offset(remoting, address, GetMinOffsetRequestHeader(**_queue_fields(queue)))


async def search_offset(remoting: RemotingClient, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
    """Return the offset of the first message stored at or after a Unix time in milliseconds; the end if there is none.

    Brokers before 5.3 return the nearest message, even if it is older, and any of several messages with the same
    millisecond (apache/rocketmq#7961, #4890). So this function reads the store times there. Without permission to read,
    it returns the broker's offset.
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
    """Return the store time of the message at an offset (Unix milliseconds); -1 if there is none."""
    part = await read_records(remoting, address, queue, offset, 1)
    messages = decode_messages(part.records, queue).messages
    return next((message.store_timestamp for message in messages if message.queue_offset == offset), -1)


async def earliest_store_time(remoting: RemotingClient, address: str, queue: MessageQueue) -> int | None:
    """Return the store time of the queue's oldest message (Unix milliseconds); None if the queue is empty."""
    reply = await request(remoting, address, GetEarliestMsgStoretimeRequestHeader(**_queue_fields(queue)))
    timestamp_ms = GetEarliestMsgStoretimeResponseHeader.from_ext_fields(reply.ext_fields).timestamp
    return timestamp_ms if timestamp_ms >= 0 else None


class _QueueFields(TypedDict):
    """The fields of a header that name a queue."""

    topic: str
    queue_id: int
    bname: str


def _queue_fields(queue: MessageQueue) -> _QueueFields:
    return {"topic": queue.topic, "queue_id": queue.queue_id, "bname": queue.broker_name}


async def _offset(remoting: RemotingClient, address: str, header: RequestHeader) -> int:
    reply = await request(remoting, address, header)
    return OffsetResponseHeader.from_ext_fields(reply.ext_fields).offset
