"""Requests to a broker that only Spark drivers send: pending resets, message sizes, creating a retry topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rmqd.client.api.group import get_consumer_list, send_heartbeat, unregister_client
from rmqd.client.api.offset import search_offset
from rmqd.client.api.request import request
from rmqd.client.remoting.client import RemotingClient
from rmqd.codes import ResponseCode
from rmqd.consumer.pull.request import OPERATOR_RESET
from rmqd.errors import RmqdError
from rmqd.wire.bodies.consume_queue import QueryConsumeQueueResponseBody
from rmqd.wire.bodies.heartbeat import (
    EXPRESSION_TAG,
    SUBSCRIPTION_ALL,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from rmqd.wire.headers.pull import PULLED, PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.headers.topic import QueryConsumeQueueRequestHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import frame_messages
from rmqd.wire.messages.sys_flag import PullSysFlag
from rmqd.wire.topics import TOOLS_GROUP

SAMPLE_MESSAGES: Final = 64


async def pending_reset(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue, offset: int
) -> int | None:
    """Return the pending reset of a group's queue, which is at `offset`; None if there is none.

    Brokers of 5.x keep a reset until a pull fetches it. They report it only once.
    """
    reply = await request(remoting, address, _pull_of_one(group, queue, offset), accepted=PULLED)
    if reply.code != ResponseCode.PULL_OFFSET_MOVED or reply.remark != OPERATOR_RESET:
        return None
    return PullMessageResponseHeader.from_ext_fields(reply.ext_fields).next_begin_offset


async def offset_at(remoting: RemotingClient, address: str, queue: MessageQueue, time_ms: int) -> int:
    """Return the offset of the first message stored at or after `time_ms` (milliseconds since 1970).

    A 4.x broker returns the message nearest to the time, which may be the one before it.
    """
    found = await search_offset(remoting, address, queue, time_ms)
    reply = await request(remoting, address, _pull_of_one(TOOLS_GROUP, queue, found), accepted=PULLED)
    if reply.code != ResponseCode.SUCCESS:
        return found
    messages = frame_messages(reply.payload, queue, reply.body_start).messages
    is_before = bool(messages) and messages[0].queue_offset == found and messages[0].store_timestamp < time_ms
    return found + 1 if is_before else found


async def stored_at(remoting: RemotingClient, address: str, queue: MessageQueue, offset: int) -> int:
    """Return the store time of the message at an offset (milliseconds since 1970); -1 if there is none."""
    reply = await request(remoting, address, _pull_of_one(TOOLS_GROUP, queue, offset), accepted=PULLED)
    if reply.code == ResponseCode.SUCCESS:
        for message in frame_messages(reply.payload, queue, reply.body_start).messages:
            if message.queue_offset == offset:
                return message.store_timestamp
    return -1


async def mean_size(remoting: RemotingClient, address: str, queue: MessageQueue, start: int) -> float:
    """Return the mean size of the next messages after an offset in bytes, from the queue's index."""
    header = QueryConsumeQueueRequestHeader(
        topic=queue.topic, queue_id=queue.queue_id, index=start, count=SAMPLE_MESSAGES
    )
    reply = await request(remoting, address, header)
    entries = QueryConsumeQueueResponseBody.from_json(reply.body).queue_data
    if not entries:
        raise RmqdError(f"the index of {queue} has no entry at {start}")
    return sum(entry.physic_size for entry in entries) / len(entries)


async def join_briefly(
    remoting: RemotingClient, address: str, client_id: str, group: str, topics: Iterable[str]
) -> None:
    """Join a group and leave it at once, because only a heartbeat makes the broker create the group's retry topic.

    It does not join if the group has members, which would share their queues with this client; their heartbeats have
    already created the topic.
    """
    subscriptions = tuple(SubscriptionData(topic) for topic in topics)
    if not await get_consumer_list(remoting, address, group):
        await send_heartbeat(remoting, address, HeartbeatData(client_id, (ConsumerData(group, subscriptions),)))
        await unregister_client(remoting, address, client_id, consumer_group=group)


def _pull_of_one(group: str, queue: MessageQueue, offset: int) -> PullMessageRequestHeader:
    """Return a pull of one message that commits nothing, and that the broker answers immediately."""
    return PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=1,
        sys_flag=PullSysFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription=SUBSCRIPTION_ALL,
        sub_version=0,
        expression_type=EXPRESSION_TAG,
    )
