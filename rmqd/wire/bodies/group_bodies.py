"""Bodies about a group: members and producers, members' reports, offsets, queue locks, and the age of messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

from rmqd.wire import fields, loose_json
from rmqd.wire.bodies import json_body
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.bodies.stats_bodies import Connection
from rmqd.wire.fields import WireName
from rmqd.wire.message_queue import MessageQueue

# keys of `ConsumerRunningInfo.properties` that mqadmin and the dashboard read
PROP_NAMESERVER_ADDR: Final = "PROP_NAMESERVER_ADDR"
PROP_THREADPOOL_CORE_SIZE: Final = "PROP_THREADPOOL_CORE_SIZE"
PROP_CONSUME_ORDERLY: Final = "PROP_CONSUMEORDERLY"
PROP_CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
PROP_CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
PROP_CONSUMER_START_TIMESTAMP: Final = "PROP_CONSUMER_START_TIMESTAMP"


class ProcessQueueInfo(json_body.Body, called="a process queue"):
    """A member's report on one of its queues. Times are Unix ms; `transaction_*` is the orderly batch being handled."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: Annotated[int, WireName("cachedMsgSizeInMiB")] = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: Annotated[bool, WireName("droped")] = False  # RocketMQ's spelling
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class PopProcessQueueInfo(json_body.Body, called="a popped queue"):
    """A member's report on a queue that it pops (id -1: any queue). The time is in milliseconds since 1970."""

    wait_ack_count: int = 0
    dropped: Annotated[bool, WireName("droped")] = False
    last_pop_timestamp: int = 0


class ConsumeStatus(json_body.Body, called="a topic's rates"):
    """A member's rates in one topic (`_rt`: ms per call, `_tps`: messages per second), and failures in an hour."""

    pull_rt: Annotated[float, WireName("pullRT")] = 0.0
    pull_tps: Annotated[float, WireName("pullTPS")] = 0.0
    consume_rt: Annotated[float, WireName("consumeRT")] = 0.0
    consume_ok_tps: Annotated[float, WireName("consumeOKTPS")] = 0.0
    consume_failed_tps: Annotated[float, WireName("consumeFailedTPS")] = 0.0
    consume_failed_msgs: int = 0


class ConsumerRunningInfo(json_body.Body):
    """The response to GET_CONSUMER_RUNNING_INFO (307): one member's report on its state.

    `jstack`, a text with all threads, is None unless requested.
    """

    properties: Mapping[str, str]
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: Mapping[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: Mapping[json_body.Topic, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: Mapping[str, str] = field(default_factory=dict)
    jstack: Annotated[str | None, json_body.WireOptions(last=True)] = None
    mq_pop_table: Mapping[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)


class CMResult(StrEnum):
    """The result of a handler call that an operator requested with CONSUME_MESSAGE_DIRECTLY."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    RETURN_NULL = "CR_RETURN_NULL"


class ConsumeMessageDirectlyResult(json_body.Body):
    """The response to CONSUME_MESSAGE_DIRECTLY (309): the result of an operator's handler call (a CMResult)."""

    consume_result: str
    order: bool = False
    auto_commit: bool = True
    remark: Annotated[str | None, json_body.WireOptions(last=True)] = None
    spent_time_mills: int = 0


class GetConsumerListByGroupResponseBody(json_body.Body):
    """The response to GET_CONSUMER_LIST_BY_GROUP (38): the client ids of a group's members.

    A member with two connections appears twice.
    """

    consumer_id_list: tuple[str, ...]


def _read_reset(value: object, what: str) -> dict[MessageQueue, int]:
    """Read a reset's offsets: a list of objects if a C++ client requested the reset, else a map by queue."""
    if isinstance(value, list):
        return {json_body.queue_from_dict(item): fields.required_integer(item, "offset") for item in value}
    return json_body.offsets_from_dict(value, what)


class ResetOffsetBody(json_body.Body):
    """The new offsets of a group's queues.

    The body of RESET_CONSUMER_CLIENT_OFFSET (220), from a broker to members, and of the response to
    INVOKE_BROKER_TO_RESET_OFFSET (222).
    """

    offset_table: Annotated[dict[MessageQueue, int], json_body.WireOptions(read=_read_reset)]

    def to_json(self, *, as_list: bool = False) -> bytes:
        """Return the body. With `as_list`, it contains a list instead of a map, as C++ clients expect it."""
        if not as_list:
            return json_body.Body.to_json(self)
        entries = [
            dict(sorted((json_body.queue_to_dict(queue) | {"offset": offset}).items()))
            for queue, offset in self.offset_table.items()
        ]
        return loose_json.dumps({"offsetTable": entries})


class GetConsumerStatusBody(json_body.Body):
    """The offsets that members have in memory.

    The response to GET_CONSUMER_STATUS_FROM_CLIENT (221), for one member, and to INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    (223), for all members by client id.
    """

    message_queue_table: Mapping[MessageQueue, int] = field(default_factory=dict)
    consumer_table: Mapping[json_body.ClientId, Mapping[MessageQueue, int]] | None = None


class QuerySubscriptionResponseBody(json_body.Body):
    """The response to QUERY_SUBSCRIPTION_BY_CONSUMER (345): the broker's copy of a group's subscription to one topic.

    `subscription_data` is None if the broker has no copy.
    """

    group: str | None = None
    topic: str | None = None
    subscription_data: SubscriptionData | None = None


class GroupList(json_body.Body):
    """The response to QUERY_TOPIC_CONSUME_BY_WHO (300): names of the groups that consume a topic."""

    groups: Annotated[tuple[str, ...], WireName("groupList")]


class ProducerConnection(json_body.Body):
    """The response to GET_PRODUCER_CONNECTION_LIST (204): the connected producers of a producer group."""

    connection_set: tuple[Connection, ...]


class ProducerInfo(json_body.Body, called="a producer"):
    """A connected producer. `last_update_timestamp` is its last heartbeat, in milliseconds since 1970."""

    client_id: str = ""
    remote_ip: Annotated[str, WireName("remoteIP")] = ""
    language: str = "OTHER"
    version: int = 0
    last_update_timestamp: int = 0


class ProducerTableInfo(json_body.Body):
    """The response to GET_ALL_PRODUCER_INFO (328): connected producers, by producer group."""

    data: dict[json_body.Group, tuple[ProducerInfo, ...]]


class LockBatchRequestBody(json_body.Body):
    """The body of LOCK_BATCH_MQ (41), which locks queues or renews locks, and of UNLOCK_BATCH_MQ (42)."""

    consumer_group: str
    client_id: str
    queues: Annotated[tuple[MessageQueue, ...], WireName("mqSet")]
    only_this_broker: bool = False


class LockBatchResponseBody(json_body.Body):
    """The response to LOCK_BATCH_MQ (41): the requested queues, without the queues that other clients have locked."""

    queues: Annotated[frozenset[MessageQueue], WireName("lockOKMQSet")]


class QueueTimeSpan(json_body.Body, called="a queue's time span"):
    """Store times of a group's messages in one queue: the oldest, the newest, and the last one handled (Unix ms).

    `delay_time` is the age of the message at the group's offset in milliseconds, by the broker's clock. It is 0 if no
    message waits, and has no meaning if the group has no offset or the message is deleted.
    """

    message_queue: MessageQueue
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object. An extra field `...Str` has each time as text, in the format of Java's tools."""
        times = json_body.Body.to_dict(self)
        printed = {f"{name}Str": _local(value) for name, value in times.items() if name.endswith("TimeStamp")}
        return dict(sorted((times | printed).items()))


class QueryConsumeTimeSpanBody(json_body.Body):
    """The response to QUERY_CONSUME_TIME_SPAN (303): the time spans of a topic's queues on one broker."""

    consume_time_span_set: tuple[QueueTimeSpan, ...]


def _local(milliseconds: int) -> str:
    at = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)).astimezone()
    return f"{at:%Y-%m-%d#%H:%M:%S}:{at.microsecond // 1000:03}"
