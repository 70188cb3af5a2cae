"""Requests that store messages: new ones, and ones that a consumer sends back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqd.client.api.request import REQUEST_TIMEOUT_SECONDS, request
from rmqd.codes import ResponseCode
from rmqd.wire.headers.recall import RecallMessageRequestHeader, RecallMessageResponseHeader
from rmqd.wire.headers.send import ConsumerSendMsgBackRequestHeader, SendMessageResponseHeader
from rmqd.wire.messages.properties import MSG_REGION, TRACE_ON

if TYPE_CHECKING:
    from rmqd.client.remoting.client import RemotingClient
    from rmqd.wire.headers.send import SendMessageRequestHeaderV2

DEFAULT_REGION = "DefaultRegion"  # Java: MixAll.DEFAULT_TRACE_REGION_ID, of brokers that do not say theirs
# The message is in the broker's log; only the disk or the slave was slower than the broker waits.
STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Where a broker stored a message. `status` is SUCCESS, or what was too slow; the message is stored in any case."""

    status: ResponseCode
    offset_msg_id: str
    queue_id: int
    queue_offset: int
    region: str
    """Of the broker, for message trace."""
    is_traced: bool
    """Whether the broker wants message trace of what it stores."""
    recall_handle: str | None
    """By which a timer message is taken back; brokers give it with what waits in their timer, since 5.3.2."""


async def send_message(
    remoting: RemotingClient,
    address: str,
    header: SendMessageRequestHeaderV2,
    body: bytes,
    *,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> SendReceipt:
    """Store one message. After a RemotingTimeoutError or RemotingClosedError it may or may not be stored."""
    reply = await request(remoting, address, header, body, timeout_seconds=timeout_seconds, accepted=STORED)
    stored = SendMessageResponseHeader.from_ext_fields(reply.ext_fields)
    return SendReceipt(
        ResponseCode(reply.code),
        stored.msg_id,
        stored.queue_id,
        stored.queue_offset,
        region=reply.ext_fields.get(MSG_REGION) or DEFAULT_REGION,
        is_traced=reply.ext_fields.get(TRACE_ON) != "false",
        recall_handle=stored.recall_handle,
    )


async def recall_message(
    remoting: RemotingClient,
    address: str,
    topic: str,
    recall_handle: str,
    *,
    broker_name: str,
    producer_group: str,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> str:
    """Have a broker take back a message that waits in its timer. Returns the message's unique key.

    The broker answers when it has noted the recall, and does not look whether such a message waits.
    Raises NoPermissionError where `recallMessageEnable` is off, IllegalOperationError for a handle whose time is over
    or that is of another topic or broker.
    """
    header = RecallMessageRequestHeader(
        topic=topic, recall_handle=recall_handle, producer_group=producer_group, bname=broker_name
    )
    reply = await request(remoting, address, header, timeout_seconds=timeout_seconds)
    return RecallMessageResponseHeader.from_ext_fields(reply.ext_fields).msg_id


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
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> None:
    """Send a message back: the broker that stores it delivers it to the group once more.

    `delay_level` 0 lets the broker choose (3 + reconsume times). Below 0 the message goes to the group's dead letters,
    as it does after `max_reconsume_times` (None: the broker's setting of the group). By `broker_name` a proxy knows
    where to pass it on; it refuses a send-back without.
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
    await request(remoting, address, header, timeout_seconds=timeout_seconds)
