"""Requests about membership in consumer groups: members, subscriptions, heartbeats, leaving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker_errors import BrokerFailureError
from rmqd.client.api.request import ADMIN_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS, request
from rmqd.codes import RequestCode
from rmqd.wire.bodies.group import GetConsumerListByGroupResponseBody
from rmqd.wire.bodies.heartbeat import CheckClientRequestBody
from rmqd.wire.bodies.running_info import ConsumerRunningInfo
from rmqd.wire.bodies.settings import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rmqd.wire.bodies.stats import ConsumerConnection
from rmqd.wire.headers.group import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    UnregisterClientRequestHeader,
)

if TYPE_CHECKING:
    from rmqd.client.remoting.client import RemotingClient
    from rmqd.wire.bodies.heartbeat import HeartbeatData, SubscriptionData

HEARTBEAT_TIMEOUT_SECONDS = 3.0
RELAYED_TIMEOUT_SECONDS = 12.0  # longer than a broker waits for a member: AdminBrokerProcessor.callConsumer


async def get_consumer_list(
    remoting: RemotingClient, address: str, group: str, *, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
) -> list[str]:
    """Return the client ids of the group's members that this broker knows; empty if it knows none."""
    header = GetConsumerListByGroupRequestHeader(consumer_group=group)
    try:
        reply = await request(remoting, address, header, timeout_seconds=timeout_seconds)
    except BrokerFailureError as error:
        # the broker has no specific code for this: ConsumerManageProcessor.getConsumerListByGroup
        if error.remark.startswith("no consumer for this group"):
            return []
        raise
    return list(GetConsumerListByGroupResponseBody.from_json(reply.body).consumer_id_list)


async def send_heartbeat(
    remoting: RemotingClient,
    address: str,
    heartbeat: HeartbeatData,
    *,
    timeout_seconds: float = HEARTBEAT_TIMEOUT_SECONDS,
) -> int:
    """Send this process's groups and their subscriptions to a broker. Returns the broker's version number."""
    reply = await request(
        remoting, address, RequestCode.HEART_BEAT, heartbeat.to_json(), timeout_seconds=timeout_seconds
    )
    return reply.version


async def unregister_client(remoting: RemotingClient, address: str, client_id: str, *, consumer_group: str) -> None:
    """Unregister a client from a group. The broker notifies the other members at once."""
    header = UnregisterClientRequestHeader(client_id=client_id, consumer_group=consumer_group)
    await request(remoting, address, header)


async def check_client_config(
    remoting: RemotingClient, address: str, client_id: str, group: str, subscription: SubscriptionData
) -> None:
    """Ask a broker to check a subscription's expression.

    Raises SubscriptionParseError for invalid SQL, BrokerFailureError if the broker has SQL filters disabled.
    """
    body = CheckClientRequestBody(client_id=client_id, group=group, subscription_data=subscription)
    await request(remoting, address, RequestCode.CHECK_CLIENT_CONFIG, body.to_json())


async def consumer_connection(remoting: RemotingClient, address: str, group: str) -> ConsumerConnection:
    """Return the group's members with connections and subscription. Raises ConsumerNotOnlineError if there are none."""
    header = GetConsumerConnectionListRequestHeader(consumer_group=group)
    reply = await request(remoting, address, header, timeout_seconds=ADMIN_TIMEOUT_SECONDS)
    return ConsumerConnection.from_json(reply.body)


async def consumer_running_info(
    remoting: RemotingClient, address: str, group: str, client_id: str
) -> ConsumerRunningInfo:
    """Return a member's running info. The broker forwards the request to the member, and waits up to 10 s.

    The timeout must not be shorter: it would look as if the broker did not answer.
    """
    header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id, jstack_enable=False)
    reply = await request(remoting, address, header, timeout_seconds=RELAYED_TIMEOUT_SECONDS)
    return ConsumerRunningInfo.from_json(reply.body)


async def subscription_group(remoting: RemotingClient, address: str, group: str) -> SubscriptionGroupConfig:
    """Return the group's settings on a broker. Raises SubscriptionGroupNotExistError if the group is missing.

    A broker with autoCreateSubscriptionGroup creates a missing group on this request. `subscription_groups` creates
    nothing.
    """
    header = GetSubscriptionGroupConfigRequestHeader(group=group)
    reply = await request(remoting, address, header, timeout_seconds=ADMIN_TIMEOUT_SECONDS)
    return SubscriptionGroupConfig.from_json(reply.body)


async def subscription_groups(remoting: RemotingClient, address: str) -> dict[str, SubscriptionGroupConfig]:
    """Return the settings of all groups on a broker, by name."""
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    reply = await request(remoting, address, code, timeout_seconds=ADMIN_TIMEOUT_SECONDS)
    return dict(SubscriptionGroupWrapper.from_json(reply.body).subscription_group_table)


async def update_subscription_group(remoting: RemotingClient, address: str, config: SubscriptionGroupConfig) -> None:
    """Create or change the group's settings on a broker."""
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    await request(remoting, address, code, config.to_json(), timeout_seconds=ADMIN_TIMEOUT_SECONDS)


async def delete_subscription_group(remoting: RemotingClient, address: str, group: str) -> None:
    """Delete a group on a broker, with its offsets there. A missing group is not an error.

    Its retry topic and its dead letters stay, because they are topics.
    """
    header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=True)
    await request(remoting, address, header, timeout_seconds=ADMIN_TIMEOUT_SECONDS)
