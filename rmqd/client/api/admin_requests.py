"""Requests for operators: the cluster, statistics, topics, offset resets, single messages, and pull or pop mode."""

from __future__ import annotations

from rmqd.client.api.remoting_request import ADMIN_TIMEOUT_SECONDS, admin_request, request
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors.broker_errors import BrokerError, BrokerFailureError, QueryNotFoundError
from rmqd.wire.bodies.config_bodies import (
    SetMessageRequestModeRequestBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    request_modes_from_json,
)
from rmqd.wire.bodies.group_bodies import GroupList, QueryConsumeTimeSpanBody, QueueTimeSpan, ResetOffsetBody
from rmqd.wire.bodies.route_data import ClusterInfo, KVTable, TopicList
from rmqd.wire.bodies.stats_bodies import ConsumeStats, TopicStatsTable
from rmqd.wire.headers.group_headers import ResetOffsetRequestHeader
from rmqd.wire.headers.topic_headers import (
    CreateTopicRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetConsumeStatsRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    PutKVConfigRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryMessageRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ViewMessageRequestHeader,
)
from rmqd.wire.loose_json import load_properties
from rmqd.wire.message_queue import MessageQueue

KEY_TIMEOUT_SECONDS = 1.0  # for the key-value table of a name server, which answers from memory
RESET_TO_END = -1


async def cluster_info(remoting: RemotingClient, address: str) -> ClusterInfo:
    """Return all clusters and brokers that a name server knows."""
    return ClusterInfo.from_json(await admin_request(remoting, address, RequestCode.GET_BROKER_CLUSTER_INFO))


async def get_kv(remoting: RemotingClient, address: str, namespace: str, key: str) -> str:
    """Return a name server's value. Raises QueryNotFoundError, or RequestCodeNotSupportedError if it has no table."""
    header = GetKVConfigRequestHeader(namespace=namespace, key=key)
    reply = await request(remoting, address, header, timeout_seconds=KEY_TIMEOUT_SECONDS)
    value = GetKVConfigResponseHeader.from_ext_fields(reply.ext_fields).value
    if value is None:
        raise BrokerError.of(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "the broker reported success, but returned no value", address
        )
    return value


async def put_kv(remoting: RemotingClient, address: str, namespace: str, key: str, value: str) -> None:
    """Store a value in a name server's key-value table."""
    header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
    await request(remoting, address, header, timeout_seconds=KEY_TIMEOUT_SECONDS)


async def broker_runtime_info(remoting: RemotingClient, address: str) -> dict[str, str]:
    return KVTable.from_json(await admin_request(remoting, address, RequestCode.GET_BROKER_RUNTIME_INFO)).table


async def topic_list(remoting: RemotingClient, address: str) -> tuple[str, ...]:
    """Return all topics that a name server knows."""
    return TopicList.from_json(
        await admin_request(remoting, address, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    ).topics


async def topic_configs(remoting: RemotingClient, address: str) -> dict[str, TopicConfig]:
    """Return the settings of all topics on one broker, by topic name."""
    body = await admin_request(remoting, address, GetAllTopicConfigRequestHeader())
    return dict(TopicConfigSerializeWrapper.from_json(body).topic_config_table)


async def topic_consumers(remoting: RemotingClient, address: str, topic: str) -> tuple[str, ...]:
    """Return the groups that consume a topic on one broker, or have an offset in it."""
    return GroupList.from_json(
        await admin_request(remoting, address, QueryTopicConsumeByWhoRequestHeader(topic=topic))
    ).groups


async def topic_stats(remoting: RemotingClient, address: str, topic: str) -> TopicStatsTable:
    """Return the ends of a topic's queues on one broker: the offsets of the oldest message and of the next message."""
    return TopicStatsTable.from_json(
        await admin_request(remoting, address, GetTopicStatsInfoRequestHeader(topic=topic))
    )


async def consume_stats(remoting: RemotingClient, address: str, group: str, *, topic: str = "") -> ConsumeStats:
    """Return a group's offsets on one broker, in one topic or in all topics that it subscribes to."""
    header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic or None)
    return ConsumeStats.from_json(await admin_request(remoting, address, header))


async def consume_time_span(
    remoting: RemotingClient, address: str, group: str, topic: str
) -> dict[MessageQueue, QueueTimeSpan]:
    """Return store times of a group's messages and the age of its oldest waiting message, by queue, on one broker."""
    header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
    spans = QueryConsumeTimeSpanBody.from_json(await admin_request(remoting, address, header)).consume_time_span_set
    return {span.message_queue: span for span in spans}


async def create_topic(remoting: RemotingClient, address: str, topic: str, queues: int) -> None:
    """Create a topic on one broker, or change its number of queues. Name servers know the change some moments later."""
    header = CreateTopicRequestHeader(topic=topic, read_queue_nums=queues, write_queue_nums=queues, perm=6)
    await admin_request(remoting, address, header)


async def topic_config(
    remoting: RemotingClient, address: str, topic: str, *, timeout_seconds: float = ADMIN_TIMEOUT_SECONDS
) -> TopicConfig:
    """Return a topic's settings on one broker. Raises TopicNotExistError if the broker does not have the topic."""
    header = GetTopicConfigRequestHeader(topic=topic)
    reply = await request(remoting, address, header, timeout_seconds=timeout_seconds)
    return TopicConfig.from_json(reply.body)


async def broker_config(remoting: RemotingClient, address: str) -> dict[str, str]:
    return load_properties(await admin_request(remoting, address, RequestCode.GET_BROKER_CONFIG))


async def delete_topic(remoting: RemotingClient, address: str, topic: str) -> None:
    """Delete a topic on one broker, with its messages and all groups' offsets. A missing topic is not an error."""
    await admin_request(remoting, address, DeleteTopicRequestHeader(topic=topic))


async def forget_topic(remoting: RemotingClient, address: str, topic: str) -> None:
    """Remove a topic from a name server until a broker registers it again."""
    await admin_request(remoting, address, DeleteTopicFromNamesrvRequestHeader(topic=topic))


async def reset_offset(
    remoting: RemotingClient,
    address: str,
    group: str,
    topic: str,
    timestamp_ms: int,
    *,
    queue_id: int | None = None,
    offset: int | None = None,
) -> dict[MessageQueue, int]:
    """Reset a group's offsets in a topic on one broker to a time (Unix milliseconds, or RESET_TO_END).

    With `queue_id`, only this queue is reset, to `offset` if it is not None. Offsets may move forward and back. Returns
    the new offsets. A 5.x broker notifies each member in the response to its next pull. A 4.x broker always resets all
    queues by time: it pushes the reset to the members, and raises ConsumerNotOnlineError if the group has no members.
    """
    header = ResetOffsetRequestHeader(
        topic=topic,
        group=group,
        timestamp=timestamp_ms,
        is_force=True,
        queue_id=-1 if queue_id is None else queue_id,
        offset=offset,
    )
    return ResetOffsetBody.from_json(await admin_request(remoting, address, header)).offset_table


async def view_message(remoting: RemotingClient, address: str, commit_log_offset: int) -> bytes | None:
    """Return the undecoded record at a commit log offset; None if no record begins there."""
    try:
        return await admin_request(remoting, address, ViewMessageRequestHeader(offset=commit_log_offset))
    except BrokerFailureError as error:
        # brokers have no specific response code for this case: QueryMessageProcessor.viewMessageById
        if "can not find message" in error.remark:
            return None
        raise


async def query_message(
    remoting: RemotingClient, address: str, topic: str, key: str, *, max_messages: int = 32, unique: bool = False
) -> bytes:
    """Return the undecoded records with a key (`unique`: with a unique key) in one byte string; empty if none is found.

    Brokers search by hash, so the result may contain records with other keys. The caller must check the keys.
    """
    header = QueryMessageRequestHeader(
        topic=topic, key=key, max_num=max_messages, begin_timestamp=0, end_timestamp=2**63 - 1
    )
    extra = {"_UNIQUE_KEY_QUERY": "true"} if unique else {}
    try:
        reply = await request(remoting, address, header, extra_fields=extra, timeout_seconds=ADMIN_TIMEOUT_SECONDS)
    except QueryNotFoundError:
        return b""
    return reply.body


async def request_modes(
    remoting: RemotingClient, address: str
) -> dict[tuple[str, str], SetMessageRequestModeRequestBody]:
    """Return the modes (pull or pop) that `mqadmin setConsumeMode` set on one broker, by (topic, group)."""
    return request_modes_from_json(await admin_request(remoting, address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE))


async def set_request_mode(remoting: RemotingClient, address: str, mode: SetMessageRequestModeRequestBody) -> None:
    """Set whether a group pulls or pops a topic on one broker, like `mqadmin setConsumeMode`."""
    await admin_request(remoting, address, RequestCode.SET_MESSAGE_REQUEST_MODE, mode.to_json())
