"""Headers about groups: unregistering, lists of members, requests from brokers to members, offsets, and resets."""

from __future__ import annotations

from typing import Annotated

from rmqd.codes import RequestCode
from rmqd.wire.fields import WireName
from rmqd.wire.headers.request_header import Header, RequestHeader


class UnregisterClientRequestHeader(RequestHeader, code=RequestCode.UNREGISTER_CLIENT):
    """Leaves a group at once, before the connection ends."""

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
    """Asks for the subscription of a group, to one topic or to all."""

    group: str
    topic: str | None = None


class GetSubscriptionGroupConfigRequestHeader(RequestHeader, code=RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG):
    """Asks for a group's configuration."""

    group: str


class GetAllSubscriptionGroupRequestHeader(RequestHeader, code=RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
    """Asks for all groups, or for `max_group_num` groups from number `group_seq`, in one version of the table."""

    group_seq: int | None = None
    data_version: str | None = None
    max_group_num: int | None = None


class DeleteSubscriptionGroupRequestHeader(RequestHeader, code=RequestCode.DELETE_SUBSCRIPTIONGROUP):
    """Deletes a group's configuration, and its offsets if `clean_offset` is set."""

    group_name: str
    clean_offset: bool | None = None


class UpdateGroupForbiddenRequestHeader(RequestHeader, code=RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN):
    """Allows or forbids a group to read a topic, or asks for the current permission."""

    group: str
    topic: str
    readable: bool | None = None


class NotifyConsumerIdsChangedRequestHeader(RequestHeader, code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED):
    """Notifies a member that the members of its group changed."""

    consumer_group: str


class GetConsumerStatusRequestHeader(RequestHeader, code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT):
    """Asks a member for its offsets in a topic; with INVOKE_BROKER_TO_GET_CONSUMER_STATUS, a broker for all members."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoRequestHeader(RequestHeader, code=RequestCode.GET_CONSUMER_RUNNING_INFO):
    """Asks a member for its state."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeMessageDirectlyResultRequestHeader(RequestHeader, code=RequestCode.CONSUME_MESSAGE_DIRECTLY):
    """Asks a member to handle the message in the body, outside its queues."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


class QueryConsumerOffsetRequestHeader(RequestHeader, code=RequestCode.QUERY_CONSUMER_OFFSET):
    """Asks for a group's stored offset. `set_zero_if_not_found=False` makes the broker report a missing offset."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetRequestHeader(RequestHeader, code=RequestCode.UPDATE_CONSUMER_OFFSET):
    """Stores a group's offset. The broker accepts any value, also a lower one."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


class SearchOffsetRequestHeader(RequestHeader, code=RequestCode.SEARCH_OFFSET_BY_TIMESTAMP):
    """Asks for the offset of the first message stored at a time (milliseconds)."""

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None


class GetMaxOffsetRequestHeader(RequestHeader, code=RequestCode.GET_MAX_OFFSET):
    """Asks for the offset that the next message will get."""

    topic: str
    queue_id: int


class GetMinOffsetRequestHeader(RequestHeader, code=RequestCode.GET_MIN_OFFSET):
    """Asks for the offset of the oldest message that the broker keeps."""

    topic: str
    queue_id: int


class GetEarliestMsgStoretimeRequestHeader(RequestHeader, code=RequestCode.GET_EARLIEST_MSG_STORETIME):
    """Asks for the store time of the oldest message that the broker keeps."""

    topic: str
    queue_id: int


class OffsetResponseHeader(Header):
    """The response to QUERY_CONSUMER_OFFSET (14), SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET, GET_MIN_OFFSET."""

    offset: int


class GetEarliestMsgStoretimeResponseHeader(Header):
    """The response to GET_EARLIEST_MSG_STORETIME (32), in milliseconds; -1 if the queue is empty."""

    timestamp: int


class ResetOffsetRequestHeader(RequestHeader, code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET):
    """Resets a group's offsets to a time in milliseconds (-1: to the end).

    Operators send INVOKE_BROKER_TO_RESET_OFFSET (222) to a broker. The broker sends RESET_CONSUMER_CLIENT_OFFSET (220)
    to the members.
    """

    topic: str
    group: str
    timestamp: int
    is_force: bool
    queue_id: int | None = None
    offset: int | None = None


class CloneGroupOffsetRequestHeader(RequestHeader, code=RequestCode.CLONE_GROUP_OFFSET):
    """Copies one group's offsets to another group. Without `offline`, only in topics that the source subscribes to."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None
