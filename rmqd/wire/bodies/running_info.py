"""What a member tells an operator: ConsumerRunningInfo (307) with its parts, ConsumeMessageDirectlyResult (309)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.heartbeat import SubscriptionData
from rmqd.wire.bodies.queue_map import queue_map_from_dict, queue_map_to_dict
from rmqd.wire.message_queue import MessageQueue

# the properties that mqadmin and the dashboard look at; the orderly one is spelled so
PROP_NAMESERVER_ADDR: Final = "PROP_NAMESERVER_ADDR"
PROP_THREADPOOL_CORE_SIZE: Final = "PROP_THREADPOOL_CORE_SIZE"
PROP_CONSUME_ORDERLY: Final = "PROP_CONSUMEORDERLY"
PROP_CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
PROP_CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
PROP_CONSUMER_START_TIMESTAMP: Final = "PROP_CONSUMER_START_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class ProcessQueueInfo:
    """One owned queue. Times are in milliseconds since 1970; the three of the transaction are an orderly batch."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; `droped` is RocketMQ's spelling."""
        return {
            "cachedMsgCount": self.cached_msg_count,
            "cachedMsgMaxOffset": self.cached_msg_max_offset,
            "cachedMsgMinOffset": self.cached_msg_min_offset,
            "cachedMsgSizeInMiB": self.cached_msg_size_in_mib,
            "commitOffset": self.commit_offset,
            "droped": self.dropped,
            "lastConsumeTimestamp": self.last_consume_timestamp,
            "lastLockTimestamp": self.last_lock_timestamp,
            "lastPullTimestamp": self.last_pull_timestamp,
            "locked": self.locked,
            "transactionMsgCount": self.transaction_msg_count,
            "transactionMsgMaxOffset": self.transaction_msg_max_offset,
            "transactionMsgMinOffset": self.transaction_msg_min_offset,
            "tryUnlockTimes": self.try_unlock_times,
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a process queue")
        return cls(
            commit_offset=fields.integer(data, "commitOffset", 0),
            cached_msg_min_offset=fields.integer(data, "cachedMsgMinOffset", 0),
            cached_msg_max_offset=fields.integer(data, "cachedMsgMaxOffset", 0),
            cached_msg_count=fields.integer(data, "cachedMsgCount", 0),
            cached_msg_size_in_mib=fields.integer(data, "cachedMsgSizeInMiB", 0),
            transaction_msg_min_offset=fields.integer(data, "transactionMsgMinOffset", 0),
            transaction_msg_max_offset=fields.integer(data, "transactionMsgMaxOffset", 0),
            transaction_msg_count=fields.integer(data, "transactionMsgCount", 0),
            locked=fields.boolean(data, "locked"),
            try_unlock_times=fields.integer(data, "tryUnlockTimes", 0),
            last_lock_timestamp=fields.integer(data, "lastLockTimestamp", 0),
            dropped=fields.boolean(data, "droped"),
            last_pull_timestamp=fields.integer(data, "lastPullTimestamp", 0),
            last_consume_timestamp=fields.integer(data, "lastConsumeTimestamp", 0),
        )


@dataclass(frozen=True, slots=True)
class PopProcessQueueInfo:
    """What a member has popped of a queue (-1: of any) and not acknowledged; the time is in milliseconds since 1970."""

    wait_ack_count: int = 0
    dropped: bool = False
    last_pop_timestamp: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "droped": self.dropped,
            "lastPopTimestamp": self.last_pop_timestamp,
            "waitAckCount": self.wait_ack_count,
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a popped queue")
        return cls(
            wait_ack_count=fields.integer(data, "waitAckCount", 0),
            dropped=fields.boolean(data, "droped"),
            last_pop_timestamp=fields.integer(data, "lastPopTimestamp", 0),
        )


@dataclass(frozen=True, slots=True)
class ConsumeStatus:
    """A topic's rates of the last minute (milliseconds a call, messages a second), and the last hour's failures."""

    pull_rt: float = 0.0
    pull_tps: float = 0.0
    consume_rt: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_msgs: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "consumeFailedMsgs": self.consume_failed_msgs,
            "consumeFailedTPS": self.consume_failed_tps,
            "consumeOKTPS": self.consume_ok_tps,
            "consumeRT": self.consume_rt,
            "pullRT": self.pull_rt,
            "pullTPS": self.pull_tps,
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a topic's rates")
        return cls(
            pull_rt=fields.number(data, "pullRT"),
            pull_tps=fields.number(data, "pullTPS"),
            consume_rt=fields.number(data, "consumeRT"),
            consume_ok_tps=fields.number(data, "consumeOKTPS"),
            consume_failed_tps=fields.number(data, "consumeFailedTPS"),
            consume_failed_msgs=fields.integer(data, "consumeFailedMsgs", 0),
        )


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo:
    """How one member of a group is doing. `jstack` is there only where it was asked for."""

    properties: Mapping[str, str]
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: Mapping[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: Mapping[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: Mapping[str, str] = field(default_factory=dict)
    jstack: str | None = None
    mq_pop_table: Mapping[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The body of the reply to 307."""
        value: dict[str, Any] = {
            "mqPopTable": queue_map_to_dict({queue: info.to_dict() for queue, info in self.mq_pop_table.items()}),
            "mqTable": queue_map_to_dict({queue: info.to_dict() for queue, info in self.mq_table.items()}),
            "properties": dict(self.properties),
            "statusTable": {topic: status.to_dict() for topic, status in self.status_table.items()},
            "subscriptionSet": [subscription.to_dict() for subscription in self.subscription_set],
            "userConsumerInfo": dict(self.user_consumer_info),
        }
        if self.jstack is not None:
            value["jstack"] = self.jstack
        return loose_json.dumps(value)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 307. Raises ProtocolError."""
        data = fields.body_object(body)
        queues = queue_map_from_dict(fields.mapping(data, "mqTable"), "mqTable")
        popped = queue_map_from_dict(fields.mapping(data, "mqPopTable"), "mqPopTable")
        return cls(
            properties=fields.text_mapping(data, "properties"),
            subscription_set=tuple(SubscriptionData.from_dict(item) for item in fields.items(data, "subscriptionSet")),
            mq_table={queue: ProcessQueueInfo.from_dict(value) for queue, value in queues.items()},
            status_table={
                fields.as_text(topic, "a topic"): ConsumeStatus.from_dict(value)
                for topic, value in fields.mapping(data, "statusTable").items()
            },
            user_consumer_info=fields.text_mapping(data, "userConsumerInfo"),
            jstack=fields.optional_text(data, "jstack"),
            mq_pop_table={queue: PopProcessQueueInfo.from_dict(value) for queue, value in popped.items()},
        )


class CMResult(StrEnum):
    """What a handler made of a message that an operator had it handle."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    RETURN_NULL = "CR_RETURN_NULL"


@dataclass(frozen=True, slots=True)
class ConsumeMessageDirectlyResult:
    """What became of a message that was handled outside its queue."""

    consume_result: str
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: int = 0

    def to_json(self) -> bytes:
        """The body of the reply to 309."""
        value: dict[str, Any] = {
            "autoCommit": self.auto_commit,
            "consumeResult": str(self.consume_result),
            "order": self.order,
            "spentTimeMills": self.spent_time_mills,
        }
        if self.remark is not None:
            value["remark"] = self.remark
        return loose_json.dumps(value)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 309. Raises ProtocolError."""
        data = fields.body_object(body)
        return cls(
            consume_result=fields.text(data, "consumeResult"),
            order=fields.boolean(data, "order"),
            auto_commit=fields.boolean(data, "autoCommit", default=True),
            remark=fields.optional_text(data, "remark"),
            spent_time_mills=fields.integer(data, "spentTimeMills", 0),
        )
