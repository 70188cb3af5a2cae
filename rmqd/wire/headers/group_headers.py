"""Headers about consumer groups: members, settings, offsets, resets, and brokers' requests to members."""

from __future__ import annotations

from typing import Annotated

from rmqd.codes import RequestCode
from rmqd.wire.fields import WireName
from rmqd.wire.headers.request_header import Header, RequestHeader


class UnregisterClientRequestHeader(RequestHeader, code=RequestCode.UNREGISTER_CLIENT):
    """Unregisters a client from a group at once. Otherwise the broker removes it when the client's connection ends."""

    client_id: Annotated[str, WireName("clientID")]
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(RequestHeader, code=RequestCode.GET_CONSUMER_LIST_BY_GROUP):
    """Asks for the client ids of a group's members."""

    consumer_group: str


class GetConsumerConnectionListRequestHeader(RequestHeader, code=RequestCode.GET_CONSUMER_CONNECTION_LIST):
    """Asks for a group's members with their addresses and subscriptions."""

    consumer_group: str


class QuerySubscriptionByConsumerRequestHeader(RequestHeader, code=RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER):
    """Asks for a group's subscription to `topic`; None: to all topics."""

    group: str
    topic: str | None = None


class GetSubscriptionGroupConfigRequestHeader(RequestHeader, code=RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG):
    group: str


class GetAllSubscriptionGroupRequestHeader(RequestHeader, code=RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
    """Asks for all groups' settings, or for `max_group_num` groups from index `group_seq` on, in one table version."""

    group_seq: int | None = None
    data_version: str | None = None
    max_group_num: int | None = None


class DeleteSubscriptionGroupRequestHeader(RequestHeader, code=RequestCode.DELETE_SUBSCRIPTIONGROUP):
    """Deletes a group's configuration, and its offsets if `clean_offset` is set."""

    group_name: str
    clean_offset: bool | None = None


class UpdateGroupForbiddenRequestHeader(RequestHeader, code=RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN):
    """Allows or forbids a group to read a topic. If `readable` is None, asks for the current permission instead."""

    group: str
    topic: str
    readable: bool | None = None


class NotifyConsumerIdsChangedRequestHeader(RequestHeader, code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED):
    """Notifies a member that the members of its group changed."""

    consumer_group: str


class GetConsumerStatusRequestHeader(RequestHeader, code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT):
    """Asks a member for its offsets in a topic.

    With the code INVOKE_BROKER_TO_GET_CONSUMER_STATUS, the header asks a broker for the offsets of all members.
    """

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoRequestHeader(RequestHeader, code=RequestCode.GET_CONSUMER_RUNNING_INFO):
    """Asks a member for its ConsumerRunningInfo: settings, queues and rates."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeMessageDirectlyResultRequestHeader(RequestHeader, code=RequestCode.CONSUME_MESSAGE_DIRECTLY):
    """Asks a member to call its handler with the message in the body, for an operator and outside of any queue."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


class QueryConsumerOffsetRequestHeader(RequestHeader, code=RequestCode.QUERY_CONSUMER_OFFSET):
    """Asks for a group's stored offset. If `set_zero_if_not_found` is False, a missing offset is not returned as 0."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetRequestHeader(RequestHeader, code=RequestCode.UPDATE_CONSUMER_OFFSET):
    """Commits a group's offset in a queue. The broker accepts any value, even below the stored offset."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


class SearchOffsetRequestHeader(RequestHeader, code=RequestCode.SEARCH_OFFSET_BY_TIMESTAMP):
    """Asks for the offset of the first message stored at or after `timestamp` (milliseconds since 1970)."""

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None


class GetMaxOffsetRequestHeader(RequestHeader, code=RequestCode.GET_MAX_OFFSET):
    """Asks for a queue's end, which is the offset of its next message."""

    topic: str
    queue_id: int


class GetMinOffsetRequestHeader(RequestHeader, code=RequestCode.GET_MIN_OFFSET):
    """Asks for the offset of the oldest message in a queue."""

    topic: str
    queue_id: int


class GetEarliestMsgStoretimeRequestHeader(RequestHeader, code=RequestCode.GET_EARLIEST_MSG_STORETIME):
    """Asks for the store time of the oldest message in a queue."""

    topic: str
    queue_id: int


class OffsetResponseHeader(Header):
    """The response to QUERY_CONSUMER_OFFSET (14), SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET, GET_MIN_OFFSET."""

    offset: int


class GetEarliestMsgStoretimeResponseHeader(Header):
    """The response to GET_EARLIEST_MSG_STORETIME (32): milliseconds since 1970, or -1 if the queue is empty."""

    timestamp: int


class ResetOffsetRequestHeader(RequestHeader, code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET):
    """Resets a group's offsets in a topic to a time in milliseconds since 1970 (-1: to the queues' ends).

    Operators send INVOKE_BROKER_TO_RESET_OFFSET (222) to a broker, and the broker then sends
    RESET_CONSUMER_CLIENT_OFFSET (220) to the group's members.
    """

    topic: str
    group: str
    timestamp: int
    is_force: bool
    queue_id: int | None = None
    offset: int | None = None


class CloneGroupOffsetRequestHeader(RequestHeader, code=RequestCode.CLONE_GROUP_OFFSET):
    """Copies a group's offsets to another group; unless `offline`, only in topics that `src_group` subscribes to."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None
