"""Requests that store messages: new messages, and send-backs of a consumer."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.client.api.remoting_request import REQUEST_TIMEOUT_SECONDS, request
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import ResponseCode
from rmqd.wire.headers.send_headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import MSG_REGION, TRACE_ON

SEND_BACK_TIMEOUT_SECONDS = 5.0  # Java: consumerSendMessageBack
DEFAULT_REGION = "DefaultRegion"  # for brokers that do not report a region; Java: MixAll.DEFAULT_TRACE_REGION_ID
# If the response has one of these codes, the message is stored. All but SUCCESS report a problem of disk or slave.
STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)


@dataclass(frozen=True, slots=True)
class SendResult:
    """The position of a stored message. `offset_msg_id` is the offset id; comma-separated ids for a batch.

    `status` is one of `STORED`: the message is stored, even if the code says that the disk or slave was slow.
    """

    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    status: ResponseCode
    region: str
    """The region that the broker reports. Trace records contain the region."""
    is_traced: bool
    """Whether trace records should be sent for the message. A broker may disable this."""
    recall_handle: str | None = None
    """The handle with which Java's producer can recall a timer message; None if the message cannot be recalled."""
    msg_id: str = ""
    """The message's unique key, which the producer created; empty for a batch."""


async def send_message(
    remoting: RemotingClient,
    address: str,
    header: SendMessageRequestHeaderV2,
    body: bytes,
    *,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> SendResult:
    """Send one message or batch. After a RemotingTimeoutError or RemotingClosedError, it may or may not be stored."""
    reply = await request(remoting, address, header, body, timeout_seconds=timeout_seconds, accepted=STORED)
    stored = SendMessageResponseHeader.from_ext_fields(reply.ext_fields)
    return SendResult(
        stored.msg_id,
        MessageQueue(header.topic, header.broker_name or "", stored.queue_id),
        stored.queue_offset,
        ResponseCode(reply.code),
        region=reply.ext_fields.get(MSG_REGION) or DEFAULT_REGION,
        is_traced=reply.ext_fields.get(TRACE_ON) != "false",
        recall_handle=stored.recall_handle,
    )


async def send_message_back(
    remoting: RemotingClient,
    address: str,
    group: str,
    commit_log_offset: int,
    delay_level: int,
    *,
    broker_name: str,
    origin_msg_id: str = "",
    origin_topic: str = "",
    max_reconsume_times: int | None = None,
    unit_mode: bool = False,
) -> None:
    """Send a message back to its broker, which redelivers it to the group.

    With `delay_level` 0 the broker uses the level 3 + reconsume times. With a level below 0, or after
    `max_reconsume_times` (None: the group's setting on the broker), it dead-letters the message. `broker_name` is for a
    proxy, which otherwise refuses to forward the send-back.
    """
    header = ConsumerSendMsgBackRequestHeader(
        offset=commit_log_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=origin_msg_id or None,
        origin_topic=origin_topic or None,
        unit_mode=unit_mode,
        max_reconsume_times=max_reconsume_times,
        bname=broker_name,
    )
    await request(remoting, address, header, timeout_seconds=SEND_BACK_TIMEOUT_SECONDS)
