"""The requests of POP: assignments, acknowledgements and changed invisible times. The consumer sends pops itself."""

from __future__ import annotations

from collections.abc import Sequence

from rmqd.client.api.remoting_request import request
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode
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
from rmqd.wire.receipt_handle import PopHandle

ACK_TIMEOUT_SECONDS = 3.0  # Java: ASYNC_TIMEOUT


async def query_assignment(
    remoting: RemotingClient, address: str, body: QueryAssignmentRequestBody
) -> tuple[MessageQueueAssignment, ...] | None:
    """Return the queues of a topic that a member should read, and whether by pulls or pops.

    Returns None if the broker does not know the member yet. RocketMQ 4 raises RequestCodeNotSupportedError.
    """
    reply = await request(remoting, address, RequestCode.QUERY_ASSIGNMENT, body.to_json())
    return QueryAssignmentResponseBody.from_json(reply.body).assignments


async def batch_ack(remoting: RemotingClient, address: str, broker_name: str, acks: Sequence[BatchAck]) -> None:
    """Acknowledge popped messages of one broker with one request."""
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

    If the message was popped from a lite topic, `real_topic` is the parent topic.
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
    """Hide a popped message for `invisible_ms` from now on. Returns its new handle; the old handle becomes invalid."""
    header = change_invisible_time_header(group, real_topic, handle, invisible_ms, lite_topic)
    reply = await request(remoting, address, header, timeout_seconds=ACK_TIMEOUT_SECONDS)
    response = ChangeInvisibleTimeResponseHeader.from_ext_fields(reply.ext_fields)
    return handle._replace(  # in the new handle, the start offset is the message's own offset
        start_offset=handle.queue_offset,
        pop_time=response.pop_time,
        invisible_time=response.invisible_time,
        revive_queue_id=response.revive_qid,
    )


def change_invisible_time_header(
    group: str, real_topic: str, handle: PopHandle, invisible_ms: int, lite_topic: str | None = None
) -> ChangeInvisibleTimeRequestHeader:
    """Return the header of the request that hides a popped message for `invisible_ms` from now on."""
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
