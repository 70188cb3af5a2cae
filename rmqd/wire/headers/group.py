"""Headers about the members of groups: leaving, asking who is there, and what brokers ask a member."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rmqd.codes import RequestCode
from rmqd.wire.fields import Named
from rmqd.wire.headers.base import Header, RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterClientRequestHeader(RequestHeader):
    """Leaves a group at once, so that the broker need not wait for the connection to end."""

    code: ClassVar[RequestCode] = RequestCode.UNREGISTER_CLIENT

    client_id: Annotated[str, Named("clientID")]
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerListByGroupRequestHeader(RequestHeader):
    """Asks for the client ids of a group's members."""

    code: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerConnectionListRequestHeader(RequestHeader):
    """Asks for a group's members with their addresses and subscriptions."""

    code: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_CONNECTION_LIST

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySubscriptionByConsumerRequestHeader(RequestHeader):
    """Asks for the subscription of a group, to one topic or to all."""

    code: ClassVar[RequestCode] = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER

    group: str
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSubscriptionGroupConfigRequestHeader(RequestHeader):
    """Asks for a group's configuration."""

    code: ClassVar[RequestCode] = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllSubscriptionGroupRequestHeader(RequestHeader):
    """Asks for all groups, or for `max_group_num` of them from number `group_seq` on, in one version of the table."""

    code: ClassVar[RequestCode] = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG

    group_seq: int | None = None
    data_version: str | None = None
    max_group_num: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllSubscriptionGroupResponseHeader(Header):
    """How many groups there are in all."""

    total_group_num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSubscriptionGroupRequestHeader(RequestHeader):
    """Deletes a group's configuration, and its offsets where asked."""

    code: ClassVar[RequestCode] = RequestCode.DELETE_SUBSCRIPTIONGROUP

    group_name: str
    clean_offset: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateGroupForbiddenRequestHeader(RequestHeader):
    """Lets a group read a topic or forbids it, or asks which it is."""

    code: ClassVar[RequestCode] = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN

    group: str
    topic: str
    readable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConsumerIdsChangedRequestHeader(RequestHeader):
    """Tells a member that the members of its group changed."""

    code: ClassVar[RequestCode] = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerStatusRequestHeader(RequestHeader):
    """Asks a member for its offsets in a topic; by INVOKE_BROKER_TO_GET_CONSUMER_STATUS, a broker for all members'."""

    code: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT

    topic: str
    group: str
    client_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerRunningInfoRequestHeader(RequestHeader):
    """Asks a member how it is doing."""

    code: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_RUNNING_INFO

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectlyResultRequestHeader(RequestHeader):
    """Asks a member to handle the one message in the body, outside its queues."""

    code: ClassVar[RequestCode] = RequestCode.CONSUME_MESSAGE_DIRECTLY

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
