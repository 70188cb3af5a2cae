"""Requests that read a queue without a group and commit nothing, and requests of POP except the pop itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmqd.client.api.remoting_request import ADMIN_TIMEOUT_SECONDS, request
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors.broker_errors import NoPermissionError
from rmqd.wire.bodies.heartbeat_data import SUBSCRIPTION_ALL, SubscriptionData
from rmqd.wire.bodies.pop_bodies import (
    BatchAck,
    BatchAckMessageRequestBody,
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from rmqd.wire.headers.pop_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from rmqd.wire.headers.pull_headers import PULLED, PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import PullSysFlag
from rmqd.wire.receipt_handle import PopHandle
from rmqd.wire.topics import TOOLS_GROUP


@dataclass(frozen=True, slots=True)
class PulledPart:
    """The undecoded records of a queue from an offset, the offset to continue at, and the queue's ends."""

    records: bytes
    next_offset: int
    min_offset: int
    max_offset: int


async def read_part(
    remoting: RemotingClient,
    address: str,
    queue: MessageQueue,
    offset: int,
    most: int,
    *,
    subscription: SubscriptionData | None = None,
    hold_seconds: float = 0.0,
) -> PulledPart:
    """Read up to `most` messages of a queue from an offset, with the tools group that every broker has.

    Brokers omit messages that an SQL subscription does not match, and most messages with other tags, because they
    compare hashes of tags. If there are no messages, they respond at once, or with `hold_seconds` when a message
    arrives, at the latest after that time. Raises RmqdError; NoPermissionError names the command that makes the topic
    readable.
    """
    by = subscription or SubscriptionData(queue.topic, SUBSCRIPTION_ALL)
    header = PullMessageRequestHeader(
        consumer_group=TOOLS_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=most,
        sys_flag=PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if hold_seconds else 0),
        commit_offset=0,
        suspend_timeout_millis=round(hold_seconds * 1000),
        subscription=by.sub_string,
        sub_version=by.sub_version,
        expression_type=by.expression_type,
    )
    seconds = hold_seconds + ADMIN_TIMEOUT_SECONDS
    try:
        reply = await request(remoting, address, header, timeout_seconds=seconds, accepted=PULLED)
    except NoPermissionError as error:
        if f"the topic[{queue.topic}]" in error.remark:  # brokers of 4.x create dead letter topics so
            command = f"mqadmin updateTopicPerm -t {queue.topic} -p 6"
            error.args = (f"{error.args[0]} (it is write-only; run `{command}` to make it readable)",)
        raise
    told = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
    found = reply.code == ResponseCode.SUCCESS
    return PulledPart(reply.body if found else b"", told.next_begin_offset, told.min_offset, told.max_offset)


ACK_TIMEOUT_SECONDS = 3.0  # Java: ASYNC_TIMEOUT


async def query_assignment(
    remoting: RemotingClient, address: str, body: QueryAssignmentRequestBody
) -> tuple[MessageQueueAssignment, ...] | None:
    """Return a member's queues of a topic, and whether to pull or pop each; None if the broker does not know them yet.

    Raises RequestCodeNotSupportedError from a broker of RocketMQ 4.
    """
    reply = await request(remoting, address, RequestCode.QUERY_ASSIGNMENT, body.to_json())
    return QueryAssignmentResponseBody.from_json(reply.body).assignments


async def batch_ack(remoting: RemotingClient, address: str, broker_name: str, acks: Sequence[BatchAck]) -> None:
    """Acknowledge many popped messages of one broker."""
    body = BatchAckMessageRequestBody(broker_name, tuple(acks)).to_json()
    await request(remoting, address, RequestCode.BATCH_ACK_MESSAGE, body, timeout_seconds=ACK_TIMEOUT_SECONDS)


async def ack_message(
    remoting: RemotingClient,
    address: str,
    group: str,
    real_topic: str,
    handle: PopHandle,
    *,
    lite_topic: str | None = None,
) -> None:
    """Acknowledge one popped message. `real_topic` is the topic that stores it, possibly a pop retry topic.

    If the message was popped from a lite topic, it is the parent topic.
    """
    header = AckMessageRequestHeader(
        consumer_group=group,
        topic=real_topic,
        queue_id=handle.queue_id,
        extra_info=str(handle),
        offset=handle.queue_offset,
        lite_topic=lite_topic,
        bname=handle.broker_name,
    )
    await request(remoting, address, header, timeout_seconds=ACK_TIMEOUT_SECONDS)


async def change_invisible_time(
    remoting: RemotingClient,
    address: str,
    group: str,
    real_topic: str,
    handle: PopHandle,
    invisible_ms: int,
    *,
    lite_topic: str | None = None,
) -> PopHandle:
    """Hide a popped message for `invisible_ms` from now on, and return its new handle."""
    header = change_header(group, real_topic, handle, invisible_ms, lite_topic)
    reply = await request(remoting, address, header, timeout_seconds=ACK_TIMEOUT_SECONDS)
    told = ChangeInvisibleTimeResponseHeader.from_ext_fields(reply.ext_fields)
    return handle._replace(  # the start offset of this handle is the message's offset
        start_offset=handle.queue_offset,
        pop_time=told.pop_time,
        invisible_time=told.invisible_time,
        revive_queue_id=told.revive_qid,
    )


def change_header(
    group: str, real_topic: str, handle: PopHandle, invisible_ms: int, lite_topic: str | None = None
) -> ChangeInvisibleTimeRequestHeader:
    """Return the header of a request to hide a popped message for `invisible_ms` from now on."""
    return ChangeInvisibleTimeRequestHeader(
        consumer_group=group,
        topic=real_topic,
        queue_id=handle.queue_id,
        extra_info=str(handle),
        offset=handle.queue_offset,
        invisible_time=invisible_ms,
        lite_topic=lite_topic,
        bname=handle.broker_name,
    )
