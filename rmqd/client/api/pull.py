"""Reading a queue without a group: pulls that commit nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rmqd.broker_errors import NoPermissionError
from rmqd.client.api.request import ADMIN_TIMEOUT_SECONDS, request
from rmqd.codes import ResponseCode
from rmqd.wire.bodies.heartbeat import SUBSCRIPTION_ALL, SubscriptionData
from rmqd.wire.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.messages.sys_flag import PullSysFlag
from rmqd.wire.topics import TOOLS_GROUP

if TYPE_CHECKING:
    from rmqd.client.remoting.client import RemotingClient
    from rmqd.wire.message_queue import MessageQueue

_ANSWERS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


@dataclass(frozen=True, slots=True)
class Part:
    """What a queue has from an offset on: undecoded records, where to go on, and the queue's ends."""

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
) -> Part:
    """Read up to `most` messages of a queue from an offset on, under the group that every broker has for tools.

    Brokers leave out what a subscription by SQL does not match, and most of what one by tags does not: they go by hash.
    Where there is nothing they answer at once, or when a message comes, after `hold_seconds` at the latest.
    Raises RmqdError; NoPermissionError names the command that lets the topic be read.
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
        reply = await request(remoting, address, header, timeout_seconds=seconds, accepted=_ANSWERS)
    except NoPermissionError as error:
        if f"the topic[{queue.topic}]" in error.remark:  # brokers of 4.x make topics of dead letters so
            command = f"mqadmin updateTopicPerm -t {queue.topic} -p 6"
            error.args = (f"{error.args[0]} (it is write-only; `{command}` lets it be read)",)
        raise
    told = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
    found = reply.code == ResponseCode.SUCCESS
    return Part(reply.body if found else b"", told.next_begin_offset, told.min_offset, told.max_offset)
