"""Pulls outside a consumer: they commit no offset."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.client.api.remoting_request import ADMIN_TIMEOUT_SECONDS, request
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import ResponseCode
from rmqd.errors.broker_errors import NoPermissionError
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.headers.pull_headers import PULL_RESPONSE_CODES, PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import PullSysFlag
from rmqd.wire.topics import TOOLS_GROUP


@dataclass(frozen=True, slots=True)
class PulledRecords:
    """The undecoded records in a pull response, the offset of the next pull, and the queue's ends."""

    records: bytes
    next_offset: int
    min_offset: int
    max_offset: int


def pull_header(
    group: str,
    queue: MessageQueue,
    offset: int,
    most: int = 1,
    subscription: SubscriptionData | None = None,
    hold_seconds: float = 0.0,
) -> PullMessageRequestHeader:
    """Return the header of a pull that commits no offset. Without a `subscription`, all messages match."""
    by = subscription or SubscriptionData(queue.topic)
    return PullMessageRequestHeader(
        consumer_group=group,
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


async def read_records(
    remoting: RemotingClient,
    address: str,
    queue: MessageQueue,
    offset: int,
    most: int,
    *,
    subscription: SubscriptionData | None = None,
    hold_seconds: float = 0.0,
) -> PulledRecords:
    """Read up to `most` messages of a queue from `offset` on, with the tools group that every broker has.

    With an SQL `subscription`, brokers return only matching messages. With tags, they compare hashes, so a few messages
    with other tags may be returned. If there is no message, the broker waits up to `hold_seconds` for one. Raises
    RmqdError; NoPermissionError names the command that makes the topic readable.
    """
    header = pull_header(TOOLS_GROUP, queue, offset, most, subscription, hold_seconds)
    seconds = hold_seconds + ADMIN_TIMEOUT_SECONDS
    try:
        reply = await request(remoting, address, header, timeout_seconds=seconds, accepted=PULL_RESPONSE_CODES)
    except NoPermissionError as error:
        if f"the topic[{queue.topic}]" in error.remark:  # 4.x brokers create dead letter topics without read permission
            command = f"mqadmin updateTopicPerm -t {queue.topic} -p 6"
            error.args = (f"{error.args[0]} (the topic is write-only; run `{command}` to make it readable)",)
        raise
    pulled = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
    found = reply.code == ResponseCode.SUCCESS
    return PulledRecords(reply.body if found else b"", pulled.next_begin_offset, pulled.min_offset, pulled.max_offset)
