"""Reports of a member to an operator: ConsumerRunningInfo with its parts, and ConsumeMessageDirectlyResult."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from rmqd.wire.bodies.base import Body, Topic, Wire
from rmqd.wire.bodies.heartbeat import SubscriptionData
from rmqd.wire.fields import Named
from rmqd.wire.message_queue import MessageQueue

# the properties that mqadmin and the dashboard read, in RocketMQ's spelling
PROP_NAMESERVER_ADDR: Final = "PROP_NAMESERVER_ADDR"
PROP_THREADPOOL_CORE_SIZE: Final = "PROP_THREADPOOL_CORE_SIZE"
PROP_CONSUME_ORDERLY: Final = "PROP_CONSUMEORDERLY"
PROP_CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
PROP_CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
PROP_CONSUMER_START_TIMESTAMP: Final = "PROP_CONSUMER_START_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class ProcessQueueInfo(Body, called="a process queue"):
    """One owned queue. Times are milliseconds since 1970. The three transaction fields describe an orderly batch."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: Annotated[int, Named("cachedMsgSizeInMiB")] = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: Annotated[bool, Named("droped")] = False  # RocketMQ's spelling
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class PopProcessQueueInfo(Body, called="a popped queue"):
    """Popped and unacknowledged messages of a queue (-1: any queue). The time is in milliseconds since 1970."""

    wait_ack_count: int = 0
    dropped: Annotated[bool, Named("droped")] = False
    last_pop_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeStatus(Body, called="a topic's rates"):
    """A topic's rates (milliseconds per call, messages per second, last minute) and failures (last hour)."""

    pull_rt: Annotated[float, Named("pullRT")] = 0.0
    pull_tps: Annotated[float, Named("pullTPS")] = 0.0
    consume_rt: Annotated[float, Named("consumeRT")] = 0.0
    consume_ok_tps: Annotated[float, Named("consumeOKTPS")] = 0.0
    consume_failed_tps: Annotated[float, Named("consumeFailedTPS")] = 0.0
    consume_failed_msgs: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo(Body):
    """The response to GET_CONSUMER_RUNNING_INFO (307): the state of one member of a group.

    `jstack` is present only if requested.
    """

    properties: Mapping[str, str]
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: Mapping[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: Mapping[Topic, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: Mapping[str, str] = field(default_factory=dict)
    jstack: Annotated[str | None, Wire(last=True)] = None
    mq_pop_table: Mapping[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)


class CMResult(StrEnum):
    """The result of a message that a handler handled at an operator's request."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    RETURN_NULL = "CR_RETURN_NULL"


@dataclass(frozen=True, slots=True)
class ConsumeMessageDirectlyResult(Body):
    """The response to CONSUME_MESSAGE_DIRECTLY (309): the result of a message that was handled outside its queue."""

    consume_result: str
    order: bool = False
    auto_commit: bool = True
    remark: Annotated[str | None, Wire(last=True)] = None
    spent_time_mills: int = 0
