"""Requests that are specific to rmqd on Spark, and the responses of brokers and name servers for many queues."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import structlog

from rmqd.client.api.admin_requests import topic_stats
from rmqd.client.api.group_requests import get_consumer_list, send_heartbeat, unregister_client
from rmqd.client.api.offset_requests import get_min_offset
from rmqd.client.api.pull_requests import pull_header
from rmqd.client.api.remoting_request import request
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import ResponseCode
from rmqd.consumer.pull.pull_request import OPERATOR_RESET_REMARK
from rmqd.errors import (
    DataLossError,
    FilterRefusedError,
    LightQueueError,
    RemotingError,
    RmqdError,
    RouteNotFoundError,
    StaticTopicError,
    UnknownTopicKindError,
)
from rmqd.errors.broker_errors import TopicNotExistError
from rmqd.wire.bodies.heartbeat_data import ConsumerData, HeartbeatData, SubscriptionData
from rmqd.wire.bodies.stats_bodies import QueryConsumeQueueResponseBody, TopicOffset
from rmqd.wire.headers.pull_headers import PULL_RESPONSE_CODES, PullMessageResponseHeader
from rmqd.wire.headers.topic_headers import QueryConsumeQueueRequestHeader
from rmqd.wire.message_queue import MessageQueue

T = TypeVar("T")


class MasterMissingError(RemotingError):
    """The routes do not contain the master of a broker, and only a master may answer the request."""


# errors because a topic, a broker or a master is missing; repeating the request at once does not help
UNAVAILABLE_ERRORS: Final = RouteNotFoundError, TopicNotExistError, MasterMissingError


@dataclass(frozen=True, slots=True)
class QueueResponses(Generic[T]):
    """The results of a query for many queues. Each queue has either a value or an error."""

    values: dict[MessageQueue, T] = field(default_factory=dict)
    errors: dict[MessageQueue, RmqdError] = field(default_factory=dict)

    @property
    def missing_queues(self) -> frozenset[MessageQueue]:
        """Queues whose topic, broker or master is not in the routes, with an error in UNAVAILABLE_ERRORS."""
        return frozenset(queue for queue, error in self.errors.items() if isinstance(error, UNAVAILABLE_ERRORS))

    @property
    def other_errors(self) -> list[RmqdError]:
        """The errors that are not about a missing topic, broker or master."""
        return [error for error in self.errors.values() if not isinstance(error, UNAVAILABLE_ERRORS)]


def existing_values_or_raise(answers: QueueResponses[T]) -> dict[MessageQueue, T]:
    """Return the values of all queues except `missing_queues`. Raises the first of `other_errors`, if any."""
    for error in answers.other_errors:
        raise error
    return answers.values


log = structlog.get_logger(__name__)


RETRY_PAUSE_SECONDS: Final = 0.5
# final errors: waiting does not create a topic, change its type or bring a message back
FINAL_ERRORS: Final = (
    RouteNotFoundError, DataLossError, FilterRefusedError, LightQueueError, StaticTopicError, UnknownTopicKindError,
)  # fmt: skip


def retry_until_timeout(ask: Callable[[], T], seconds: float) -> T:
    """Return the result of `ask`. After an RmqdError, repeat the call for at most `seconds`, then raise the error.

    An error in FINAL_ERRORS is raised at once.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except FINAL_ERRORS:
            raise
        except RmqdError as error:
            if time.monotonic() + RETRY_PAUSE_SECONDS > until:
                raise
            log.warning("spark.request_retried", error=str(error))
        time.sleep(RETRY_PAUSE_SECONDS)


SIZE_SAMPLE_MESSAGES: Final = 64


async def pending_reset_offset(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue, offset: int
) -> int | None:
    """Return the target offset of an operator's pending reset, or None. `offset` is the group's current offset.

    A 5.x broker keeps a reset until a pull response reports it once, and ignores commits until then.
    """
    header = pull_header(group, queue, offset)
    reply = await request(remoting, address, header, accepted=PULL_RESPONSE_CODES)
    if reply.code != ResponseCode.PULL_OFFSET_MOVED or reply.remark != OPERATOR_RESET_REMARK:
        return None
    return PullMessageResponseHeader.from_ext_fields(reply.ext_fields).next_begin_offset


async def mean_message_size(remoting: RemotingClient, address: str, queue: MessageQueue, start: int) -> float:
    """Return the mean size in bytes of the next messages from offset `start`, read from the broker's consume queue."""
    header = QueryConsumeQueueRequestHeader(
        topic=queue.topic, queue_id=queue.queue_id, index=start, count=SIZE_SAMPLE_MESSAGES
    )
    reply = await request(remoting, address, header)
    entries = QueryConsumeQueueResponseBody.from_json(reply.body).queue_data
    if not entries:
        raise RmqdError(f"the broker's consume queue of {queue} has no entry for offset {start}")
    return sum(entry.physic_size for entry in entries) / len(entries)


async def create_retry_topic(
    remoting: RemotingClient, address: str, client_id: str, group: str, topics: Iterable[str]
) -> None:
    """Make the broker create a group's retry topic: join the group with one heartbeat, and leave it at once.

    If the group has members, do not join, because they would share their queues with this client. The heartbeats of the
    members have already created the retry topic.
    """
    subscriptions = tuple(SubscriptionData(topic) for topic in topics)
    if not await get_consumer_list(remoting, address, group):
        await send_heartbeat(remoting, address, HeartbeatData(client_id, (ConsumerData(group, subscriptions),)))
        await unregister_client(remoting, address, client_id, consumer_group=group)


QueueQuery = Callable[["RemotingClient", str, "MessageQueue"], Awaitable[T]]


async def topic_offset_table(
    remoting: RemotingClient, address: str, queue: MessageQueue
) -> dict[MessageQueue, TopicOffset]:
    """Return the minimum and maximum offsets of all queues that `queue.topic` has on the broker at `address`."""
    return (await topic_stats(remoting, address, queue.topic)).offset_table


async def first_offset(remoting: RemotingClient, address: str, queue: MessageQueue) -> int:
    """Return the offset of the queue's oldest message; 0 if the queue never had messages."""
    return max(0, await get_min_offset(remoting, address, queue))
